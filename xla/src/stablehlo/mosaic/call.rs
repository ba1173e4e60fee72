//! The call of the decode kernel from a program.
//!
//! Entry point: [`attend`]. The body of the custom call and the types of its operands come from the same
//! [`DecodeKernel`].

use devices::DecodeAttention;
use model::graph::{AttentionSpec, DType};
use numbers::FloatType;

use super::super::attention::Batch;
use super::super::emitter::Emitter;
use super::super::history::context_lens;
use super::super::inputs::Sizes;
use super::super::tensor::{Tensor, Type};
use super::decode;
use super::kernel::{DecodeKernel, DecodeSizes, LANES};
use super::value::{self, Element, Space};

/// The custom call that libtpu compiles with Mosaic.
const TARGET: &str = "tpu_custom_call";
/// XLA's number of the device's memory.
const HBM_COLOR: usize = 0;

/// Computes the attention of q `[rows, heads, head_dim]`, scaled and in the type of the cache, to the contexts of the
/// rows, with `sinks` `[heads]` if the kernel has sinks. The output is `[rows, heads, value_dim]`, f32, and zero for
/// padding.
///
/// # Panics
/// When the shapes or element types of the operands are not those of `kernel`.
pub(in super::super) fn attend(
    emitter: &mut Emitter,
    kernel: &DecodeKernel,
    (q, sinks): (&Tensor, Option<&Tensor>),
    caches: [&Tensor; 2],
    Batch { rows, sizes: _ }: Batch<'_>,
) -> Tensor {
    let types: Vec<Type> = kernel.operands().iter().map(tensor_type).collect();
    let lens = context_lens(emitter, rows); // [rows]
    let none = emitter.splat(0.0, lens.ty().clone()); // [rows]
    let lens = emitter.select(&rows.is_token, &lens, &none); // [rows]
    let tables = tables(emitter, kernel, &rows.block_tables);
    let q = emitter.reshape(q, &types[2].dims); // [rows, groups, queries, head_dim]
    let sinks = sinks.map(|sinks| {
        let [groups, queries] = kernel.groups();
        let sinks = emitter.convert(sinks, DType::F32); // [heads]
        let sinks = emitter.reshape(&sinks, &[groups, queries]); // [groups, queries]
        emitter.broadcast(&sinks, &[0, 1], &[groups, queries, LANES]) // [groups, queries, LANES]
    });
    let operands: Vec<&Tensor> = [&lens, &tables, &q, caches[0], caches[1]].into_iter().chain(&sinks).collect();
    assert!(operands.iter().map(|operand| operand.ty()).eq(&types), "operands have the types of the kernel");
    let config = config(kernel);
    let output = emitter.custom_call((TARGET, decode::NAME), &operands, tensor_type(&kernel.result()), &config);
    emitter.reshape(&output, &[kernel.rows, kernel.heads, kernel.value_dim]) // [rows, heads, value_dim]
}

impl DecodeKernel {
    /// Returns the kernel for q `[rows, heads, head_dim]`, sinks `[heads]` and caches
    /// `[num_blocks, BLOCK_SIZE, width]`. Returns `None` if the program shall not call one, or if there is none for
    /// these sizes.
    pub(in super::super) fn of(
        (q, sinks): (&Tensor, Option<&Tensor>),
        caches: [&Tensor; 2],
        sizes: &Sizes,
        spec: &AttentionSpec,
    ) -> Option<Self> {
        let AttentionSpec { keys: _, values: _, scale: _, window, soft_cap, slopes } = *spec;
        if sizes.decode_attention == DecodeAttention::Loop || sizes.tokens_per_row > 1 || slopes.is_some() {
            return None;
        }
        let [heads, head_dim] = [q.dims()[1], q.dims()[2]];
        let kv_heads = caches[0].dims()[2] / head_dim;
        Self::new(&DecodeSizes {
            rows: sizes.rows,
            heads,
            kv_heads,
            head_dim,
            value_dim: caches[1].dims()[2] / kv_heads,
            num_blocks: caches[0].dims()[0],
            blocks_per_row: sizes.blocks_per_row,
            window,
            soft_cap,
            has_sinks: sinks.is_some(),
            element: Element::of(caches[0].dtype())?,
        })
    }
}

/// Returns block tables `[rows, blocks_per_row]` in the shape that the kernel reads.
fn tables(emitter: &mut Emitter, kernel: &DecodeKernel, tables: &Tensor) -> Tensor {
    let dims = kernel.table_dims();
    if let [_, vectors, lanes] = *dims {
        let zero = emitter.scalar(0.0, DType::I32); // []
        let padded = emitter.pad_last(tables, &zero, vectors * lanes); // [rows, vectors * lanes]
        return emitter.reshape(&padded, &dims); // [rows, vectors, lanes]
    }
    emitter.reshape(tables, &dims) // [rows * blocks_per_row]
}

fn tensor_type(ty: &value::Type) -> Type {
    let dtype = match ty.element() {
        Element::I32 | Element::Index => DType::I32,
        Element::F32 => DType::Float(FloatType::F32),
        Element::Bf16 => DType::Float(FloatType::Bf16),
        Element::I1 | Element::Semaphore => unreachable!("operands are numbers"),
    };
    Type::new(ty.dims(), dtype)
}

/// Returns the configuration of the custom call.
fn config(kernel: &DecodeKernel) -> String {
    let body = base64(decode::module(kernel).as_bytes());
    let [flops, exponentials, bytes] = kernel.reference_costs();
    let costs = format!(r#""flops": {flops}, "transcendentals": {exponentials}, "bytes_accessed": {bytes}"#);
    let costs = format!(r#""cost_estimate": {{{costs}, "remote_bytes_transferred": 0}}"#);
    // Without these, XLA may copy a whole cache into faster memory for the call.
    let in_hbm = kernel.operands().into_iter().enumerate().filter(|(_, ty)| ty.space() == Some(Space::Hbm));
    let places = in_hbm.map(|(index, _)| format!(r#"{{"operand_index": {index}, "color": {HBM_COLOR}}}"#));
    let places: Vec<String> = places.collect();
    let places = format!(r#""input_memory_space_colors": [{}]"#, places.join(", "));
    let form = r#""serialization_format": 1, "needs_layout_passes": true"#;
    format!(r#"{{"custom_call_config": {{"body": "{body}", {costs}, {places}, {form}}}}}"#)
}

/// Returns bytes as text (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |group: &[u8]| {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let len = group.len();
        (0..4).map(move |digit| {
            if digit > len { '=' } else { char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize % DIGITS.len()]) }
        })
    };
    bytes.chunks(3).flat_map(digits).collect()
}

impl Element {
    /// Returns the type that elements of a tensor have in a kernel; `None` if no operand of a kernel has such elements.
    pub(in super::super) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::Float(FloatType::F32) => Some(Self::F32),
            DType::Float(FloatType::Bf16) => Some(Self::Bf16),
            DType::I32 => Some(Self::I32),
            DType::Float(FloatType::F16) | DType::F8 | DType::I4 | DType::I8 | DType::U32 | DType::Bool => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of RFC 4648, section 10, and bytes whose text contains the digits + and /.
    #[test]
    fn text_of_bytes() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
