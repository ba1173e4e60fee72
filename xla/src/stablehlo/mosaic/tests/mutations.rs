//! Tests that the interpreter finds a kernel that is wrong, because an effect is left out or a slot is taken for
//! another.

use std::cell::RefCell;

use super::super::value::{Space, Type};
use super::interpreter::REMOVED;
use super::text::Operation;
use super::*;

/// Operations that change memory or wait for it.
const EFFECTS: [&str; 4] = ["memref.store", "tpu.enqueue_dma", "tpu.vector_store", "tpu.wait_dma2"];

/// Returns cases in which every operation of the kernel has work: rows of several chunks, whole and partial ones,
/// tables in both memories, and several steps of the grid. The chunks that are fetched first are the two of the first
/// row and the one of the second.
fn cases() -> [Case; 3] {
    let plain = Sizes {
        kv_heads: 2,
        per_kv_head: 2,
        dims: [64, 64],
        is_wide: true,
        element: Element::F32,
        chunk_blocks: 2,
        num_slots: 4,
        bounds: (None, None, false),
        has_scalar_tables: true,
        max_window_bytes: 2 << 20,
    };
    let dims = [128, 128];
    let split = Sizes { dims, is_wide: false, has_scalar_tables: false, max_window_bytes: 1, ..plain.clone() };
    let bounded =
        Sizes { bounds: (Some(Window::Sliding(40)), Some(2.0), true), element: Element::Bf16, ..plain.clone() };
    let lens = [40, 9, 64, 0, 150, 33];
    let long = [70, 9, 64, 0, 150, 33];
    [(plain, lens), (split, lens), (bounded, long)]
        .map(|(sizes, lens)| Case::new(sizes.kernel(), &lens, &mut Numbers::new(3)))
}

/// Returns the number of operations for which `is_one` is true, and applies `change` to the `index`-th of them.
fn change(
    module: &mut Operation,
    is_one: &dyn Fn(&Operation) -> bool,
    index: usize,
    change: &dyn Fn(&mut Operation),
) -> usize {
    let mut count = 0;
    module.visit(&mut |operation| {
        if is_one(operation) {
            if count == index {
                change(operation);
            }
            count += 1;
        }
    });
    count
}

/// Checks that `apply` makes the case fail for each operation for which `is_one` is true, and returns their number.
fn check_changes(case: &Case, is_one: &dyn Fn(&Operation) -> bool, apply: &dyn Fn(&mut Operation)) -> usize {
    let module = case.module();
    case.check(&module).unwrap();
    let total = change(&mut module.clone(), is_one, usize::MAX, apply);
    for index in 0..total {
        let mut changed = module.clone();
        let name = RefCell::new(String::new());
        change(&mut changed, is_one, index, &|operation| {
            *name.borrow_mut() = format!("{operation:?}");
            apply(operation);
        });
        assert!(case.check(&changed).is_err(), "{:?}\ndoes not notice a change of {}", case.kernel, name.borrow());
    }
    total
}

#[test]
fn no_effect_is_superfluous() {
    for case in cases() {
        let is_effect = |operation: &Operation| EFFECTS.contains(&operation.name.as_str());
        let remove = |operation: &mut Operation| REMOVED.clone_into(&mut operation.name);
        let total = check_changes(&case, &is_effect, &remove);
        assert!(total >= 20, "{total} effects");
    }
}

/// The target of a wait only says how many bytes to wait for, so its slot is not changed.
#[test]
fn no_slot_is_taken_for_another() {
    for case in cases() {
        let mut targets = Vec::new();
        case.module().visit(&mut |operation| {
            if let ("tpu.wait_dma2", [_, _, target]) = (operation.name.as_str(), operation.operands.as_slice()) {
                targets.push(*target);
            }
        });
        case.module().visit(&mut |operation| {
            if let Some((number, _)) = operation.result
                && operation.name == "tpu.memref_squeeze"
                && targets.contains(&number)
            {
                targets.push(operation.operands[0]);
            }
        });
        let is_ring = |ty: &Type| match ty {
            Type::Array { dims, space: Space::Vmem, .. } => dims.len() == 4 && dims[0] == case.kernel.num_slots,
            Type::Array { dims, space: Space::Smem, .. } => dims.len() == 3,
            Type::Array { dims, space: Space::Semaphores, .. } => dims.len() == 1,
            _ => false,
        };
        let is_slot = |operation: &Operation| {
            let is_target = operation.result.as_ref().is_some_and(|(number, _)| targets.contains(number));
            operation.types.first().is_some_and(is_ring) && operation.operands.len() > 1 && !is_target
        };
        let skew = |operation: &mut Operation| operation.skew = Some((1, operation.types[0].dims()[0] as i64));
        let total = check_changes(&case, &is_slot, &skew);
        assert!(total >= 10, "{total} slots");
    }
}
