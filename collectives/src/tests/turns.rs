//! Tests of turns: the ranks that have a turn never exceed the limit, every rank gets a turn, and a rank that waits
//! calls back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use test_support::{join_scoped, receive};

use super::{LONG, SHORT, SharedMemory, groups, run};
use crate::CollectiveError;

#[test]
fn turns_never_exceed_the_limit() {
    for limit in [0, 1, 2, 9] {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        run(groups(4), |mut group| {
            for _ in 0..25 {
                let turn = group.take_turn(limit, &mut || {}).unwrap();
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                drop(turn);
            }
            group.all_reduce(&mut []).unwrap();
        });
        assert!(most.into_inner() <= limit.max(1), "limit {limit}");
    }
}

#[test]
fn a_rank_that_waits_says_so() {
    let mut groups = groups(2);
    let mut second = groups.pop().unwrap();
    let turn = groups[0].take_turn(1, &mut || panic!("nobody has a turn")).unwrap();
    let (said, hears) = mpsc::channel();
    thread::scope(|scope| {
        let waits = scope.spawn(move || second.take_turn(1, &mut || said.send(()).unwrap()).is_ok());
        receive(&hears, "the first call of the rank that waits");
        receive(&hears, "the second call of the rank that waits");
        drop(turn);
        assert!(join_scoped(waits, "the rank that waits"));
    });
}

#[test]
fn deadline_names_who_keeps_a_turn() {
    let memory = SharedMemory::new();
    let (mut first, mut second) = (memory.join(0, 2, LONG), memory.join(1, 2, SHORT));
    let _turn = first.take_turn(1, &mut || {}).unwrap();
    let error = second.take_turn(1, &mut || {}).unwrap_err();
    insta::assert_snapshot!(error, @"taking a turn (1 at once): waited 20ms for rank 0");
    assert!(matches!(first.take_turn(2, &mut || {}), Err(CollectiveError::Aborted { rank: 1 })));
}

#[test]
fn abort_ends_waiting_for_a_turn() {
    let mut groups = groups(2);
    let mut second = groups.pop().unwrap();
    let _turn = groups[0].take_turn(1, &mut || {}).unwrap();
    let (said, hears) = mpsc::channel();
    thread::scope(|scope| {
        let waits = scope.spawn(move || second.take_turn(1, &mut || said.send(()).unwrap()));
        receive(&hears, "a call of the rank that waits");
        groups[0].abort();
        assert!(matches!(join_scoped(waits, "the rank that waits"), Err(CollectiveError::Aborted { rank: 0 })));
    });
}
