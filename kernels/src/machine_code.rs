//! Tests that the kernels' machine code keeps sums in registers. AMX is left out, because its code is assembly that
//! names its registers.
//!
//! If a change makes the compiler spill sums to the stack, the results stay the same, but the speed may halve, perhaps
//! for some instruction sets only. The test disassembles its own executable, so it also covers instruction sets that
//! the processor lacks.

use std::error::Error;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::attention::paged_attention;
use crate::linear::{gated_mlp, linear};

/// An instruction that adds products, and the size of its registers in bytes.
type Product = (Mnemonic, usize);

/// A product instruction, its number in one iteration of a loop, and the minimum number of such loops. The counts hold
/// for the compiler in `rust-toolchain.toml`; another version may merge or split some loops.
const LOOPS: [(Product, usize, usize); 9] = [
    ((Mnemonic::Vdpbf16ps, 64), 24, 6),
    ((Mnemonic::Vpdpbusd, 64), 24, 4),
    ((Mnemonic::Vpdpbusd, 64), 64, 4),
    ((Mnemonic::Vpdpbusd, 32), 12, 2),
    ((Mnemonic::Vpmaddwd, 64), 24, 3),
    ((Mnemonic::Vpmaddwd, 32), 12, 4),
    ((Mnemonic::Vfmadd231ps, 64), 24, 13),
    ((Mnemonic::Vfmadd231ps, 64), 48, 6),
    ((Mnemonic::Vfmadd231ps, 32), 12, 14),
];

/// The maximum number of vectors that a loop may load from or store to the stack. Loops that widen, exponentiate or
/// measure the processor's arithmetic spill some.
const MAX_STACK_VECTORS: usize = 40;
/// The maximum number of vectors on the stack for each product of a loop that converts levels of few bits. Such a loop
/// has the products of a whole step, and keeps x and levels on the stack until it needs them. Memory limits its speed.
const MAX_STACK_VECTORS_PER_LEVEL: usize = 3;
/// The same for levels as 16-bit integers, whose sums `Simd::pin` keeps where they are computed.
const MAX_STACK_VECTORS_PER_INTEGER: usize = 1;

/// An innermost loop that adds products.
struct Loop {
    product: Product,
    num_products: usize,
    /// The number of instructions that read a vector from the stack or write one there.
    num_stack_vectors: usize,
    converts_levels: bool,
    address: u64,
}

impl Loop {
    fn max_stack_vectors(&self) -> usize {
        match self.product {
            _ if !self.converts_levels => MAX_STACK_VECTORS,
            (Mnemonic::Vpmaddwd, _) => MAX_STACK_VECTORS_PER_INTEGER * self.num_products,
            _ => MAX_STACK_VECTORS_PER_LEVEL * self.num_products,
        }
    }
}

#[test]
fn inner_loops_keep_their_sums_in_registers() -> Result<(), Box<dyn Error>> {
    // The linker drops functions that nothing uses.
    std::hint::black_box((linear as fn(_, _, _, _), gated_mlp as fn(_, _, _, _), paged_attention as fn(_, _, _, _, _)));
    let loops = loops_of(&std::fs::read(std::env::current_exe()?)?)?;
    for (product, num_products, num_loops) in LOOPS {
        let is_it = |it: &&Loop| (it.product, it.num_products, it.num_stack_vectors) == (product, num_products, 0);
        let found = loops.iter().filter(is_it).count();
        assert!(found >= num_loops, "{product:?}: {found} loops of {num_products} products, {num_loops} expected");
    }
    let spilled = loops.iter().filter(|it| it.num_stack_vectors > it.max_stack_vectors());
    let spilled: Vec<String> = spilled.map(|it| format!("{:?} at {:#x}", it.product, it.address)).collect();
    assert!(spilled.is_empty(), "these loops keep their sums on the stack: {spilled:?}");
    Ok(())
}

/// Returns the innermost loops that add products, from all functions of an executable.
fn loops_of(executable: &[u8]) -> Result<Vec<Loop>, Box<dyn Error>> {
    let file = object::File::parse(executable)?;
    let mut loops = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
        let Some(section) = symbol.section_index() else { continue };
        let section = file.section_by_index(section)?;
        if let Some(code) = section.data_range(symbol.address(), symbol.size())? {
            let decoder = Decoder::with_ip(64, code, symbol.address(), DecoderOptions::NONE);
            loops.extend(innermost_loops(&decoder.into_iter().collect::<Vec<_>>()));
        }
    }
    Ok(loops)
}

fn innermost_loops(code: &[Instruction]) -> Vec<Loop> {
    let index_of = |address: u64| code.binary_search_by_key(&address, Instruction::ip).ok();
    let mut ranges = Vec::new();
    for (last, instruction) in code.iter().enumerate() {
        let is_jump = instruction.op0_kind() == OpKind::NearBranch64 && instruction.mnemonic() != Mnemonic::Call;
        if is_jump && let Some(first) = index_of(instruction.near_branch_target()).filter(|first| *first <= last) {
            ranges.push((first, last));
        }
    }
    let holds_another = |(first, last): (usize, usize)| {
        ranges.iter().any(|other| *other != (first, last) && first <= other.0 && other.1 <= last)
    };
    let innermost = ranges.iter().filter(|range| !holds_another(**range));
    innermost.filter_map(|(first, last)| loop_of(&code[*first..=*last])).collect()
}

/// Returns the loop with this body, or `None` if it adds no products.
fn loop_of(body: &[Instruction]) -> Option<Loop> {
    let products: Vec<Product> = body.iter().filter_map(product_of).collect();
    let num_stack_vectors = body.iter().filter(|instruction| is_stack_vector(instruction)).count();
    let product = *products.iter().max_by_key(|(_, bytes)| *bytes)?;
    let converts_levels = body.iter().any(|instruction| converts_level(instruction.mnemonic()));
    Some(Loop { product, num_products: products.len(), num_stack_vectors, converts_levels, address: body[0].ip() })
}

fn product_of(instruction: &Instruction) -> Option<Product> {
    let mnemonic = instruction.mnemonic();
    let is_product = matches!(
        mnemonic,
        Mnemonic::Vdpbf16ps
            | Mnemonic::Vpdpbusd
            | Mnemonic::Vpmaddwd
            | Mnemonic::Vfmadd231ps
            | Mnemonic::Vfmadd213ps
            | Mnemonic::Vfmadd132ps
    );
    is_product.then(|| (mnemonic, instruction.op0_register().size()))
}

/// True if an instruction makes numbers of levels: by a look-up or by a conversion of integers.
fn converts_level(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Vcvtdq2ps
            | Mnemonic::Vpermd
            | Mnemonic::Vpermps
            | Mnemonic::Vpermw
            | Mnemonic::Vpermi2w
            | Mnemonic::Vpermt2w
    )
}

/// True if an instruction reads or writes a whole vector on the stack.
fn is_stack_vector(instruction: &Instruction) -> bool {
    let mut operands = (0..instruction.op_count()).map(|idx| instruction.op_kind(idx));
    let mut registers = (0..instruction.op_count()).map(|idx| instruction.op_register(idx));
    operands.any(|kind| kind == OpKind::Memory)
        && !instruction.is_broadcast()
        && matches!(instruction.memory_base(), Register::RSP | Register::RBP)
        && registers.any(|register| register.is_ymm() || register.is_zmm())
}
