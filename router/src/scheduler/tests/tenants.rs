//! Several tenants: they take turns in the queue, and share blocks only within a scope.

use super::super::*;
use super::{Rig, SequenceSpec, limits, spec};
use crate::tenant::Tenant;

fn of(tenant: u32) -> SequenceSpec {
    SequenceSpec { tenant: Tenant::new(tenant), ..spec(2, 1) }
}

/// Ids of those who were admitted, in order.
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
fn who_comes_later_does_not_make_up_for_turns_that_are_over() {
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
    let of_scope = |scope| SequenceSpec { cache_scope: CacheScope(scope), ..spec(9, 1) };
    let mut num_cached = |scope| {
        rig.submit(of_scope(scope));
        let (step, _) = rig.next();
        let num_cached = step.chunks[0].cached_token_ids.len();
        while rig.usage().num_running > 0 {
            rig.next();
        }
        num_cached
    };
    assert_eq!([0, 0, 1, 1, 0].map(&mut num_cached), [0, 8, 0, 8, 8]);
}
