//! Tests with several tenants: they take turns in the queue, share the slots, and share blocks only within a scope.

use super::{Rig, SequenceSpec, limits, scope, spec};
use crate::*;

fn of(tenant: u32) -> SequenceSpec {
    SequenceSpec { tenant: Tenant::new(tenant), ..spec(2, 1) }
}

/// Runs all sequences to the end. Returns their ids in order of admission.
fn admitted(rig: &mut Rig) -> Vec<SequenceId> {
    let mut ids = Vec::new();
    while rig.usage().num_waiting + rig.usage().num_running > 0 {
        let (_, events) = rig.next();
        ids.extend(
            events.iter().filter(|event| matches!(event.kind, SequenceEvent::Admitted { .. })).map(|event| event.id),
        );
    }
    ids
}

#[test]
fn tenants_take_turns_in_the_queue() {
    let mut rig = Rig::new(limits(1, 100, 50));
    let many: Vec<SequenceId> = (0..5).map(|_| rig.submit(of(0))).collect();
    let few = [(); 2].map(|()| rig.submit(of(1)));
    let one = rig.submit(of(2));
    assert_eq!(admitted(&mut rig), [many[0], few[0], one, many[1], few[1], many[2], many[3], many[4]]);
}

#[test]
fn a_late_tenant_does_not_make_up_for_past_turns() {
    let mut rig = Rig::new(limits(1, 100, 50));
    let early: Vec<SequenceId> = (0..6).map(|_| rig.submit(of(0))).collect();
    for _ in 0..3 {
        rig.next();
    }
    let late = [(); 2].map(|()| rig.submit(of(1)));
    let order = admitted(&mut rig);
    let place = |id: SequenceId| order.iter().position(|admitted| *admitted == id).unwrap();
    assert!(place(late[0]) <= 1 && place(late[1]) <= 3, "{order:?}");
    assert!(place(late[1]) > place(early[5]) - 3, "{order:?}");
}

#[test]
fn a_tenant_alone_is_served_in_order() {
    let mut rig = Rig::new(limits(1, 100, 50));
    let first = [(); 3].map(|()| rig.submit(of(1)));
    rig.scheduler.cancel(first[1]);
    let last = rig.submit(of(1));
    assert_eq!(admitted(&mut rig), [first[0], first[2], last]);
}

#[test]
fn another_scope_finds_nothing() {
    let mut rig = Rig::new(limits(1, 100, 50));
    let mut num_cached = |number| {
        let mut spec = spec(9, 1);
        spec.prompt.scope = scope(number);
        rig.submit(spec);
        let (step, _) = rig.next();
        let num_cached = super::opening(&step.rows[0]).cached_token_ids.len();
        while rig.usage().num_running > 0 {
            rig.next();
        }
        num_cached
    };
    assert_eq!([0, 0, 1, 1, 0].map(&mut num_cached), [0, 8, 0, 8, 8]);
}

/// Runs all sequences to the end. Returns the number of the step in which each sequence generated its first token, and
/// the number of displaced sequences.
fn run(rig: &mut Rig) -> (Vec<(SequenceId, usize)>, u32) {
    let (mut first_tokens, mut num_displaced): (Vec<(SequenceId, usize)>, u32) = (Vec::new(), 0);
    for number in 1.. {
        let (step, events) = rig.next();
        num_displaced += step.num_displaced;
        for event in events {
            let is_known = first_tokens.iter().any(|(id, _)| *id == event.id);
            if matches!(event.kind, SequenceEvent::Token { .. }) && !is_known {
                first_tokens.push((event.id, number));
            }
        }
        if rig.usage().num_waiting + rig.usage().num_running == 0 {
            break;
        }
    }
    (first_tokens, num_displaced)
}

#[test]
fn a_tenant_that_finds_full_slots_waits_for_a_step_and_not_for_answers() {
    let mut rig = Rig::new(limits(4, 100, 200));
    let greedy: Vec<SequenceId> =
        (0..8).map(|number| rig.submit(SequenceSpec { tenant: Tenant::new(0), ..spec(3 + number, 40) })).collect();
    rig.next();
    rig.next();
    assert_eq!(rig.usage().num_running, 4);
    let ordinary = [20, 21, 22].map(|len| rig.submit(SequenceSpec { tenant: Tenant::new(1), ..spec(len, 40) }));
    let (first_tokens, num_displaced) = run(&mut rig);
    let step_of = |id: SequenceId| first_tokens.iter().find(|(other, _)| *other == id).unwrap().1;
    assert!(step_of(ordinary[0]) <= 2 && step_of(ordinary[1]) <= 4, "{first_tokens:?}");
    assert!(step_of(ordinary[2]) > 30, "two of four slots are its part: {first_tokens:?}");
    // Two slots were given up for the second tenant. None was given up while both tenants had their shares.
    assert_eq!((num_displaced, first_tokens.len()), (2, greedy.len() + ordinary.len()));
}

#[test]
fn a_tenant_alone_has_every_slot() {
    let mut rig = Rig::new(limits(4, 100, 200));
    rig.submit(SequenceSpec { tenant: Tenant::new(1), ..spec(2, 1) });
    run(&mut rig);
    for number in 0..8 {
        rig.submit(SequenceSpec { tenant: Tenant::new(0), ..spec(3 + number, 10) });
    }
    rig.next();
    assert_eq!(rig.usage().num_running, 4);
    assert_eq!(run(&mut rig).1, 0);
}
