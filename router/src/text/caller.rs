//! The callers of the tokenizer pool's work. If a caller leaves before its work is done, nobody needs the result, and
//! work that may take long can end.
//!
//! Entry points: [`Caller`], [`CallerView::during`] and [`has_left`].

use std::cell::RefCell;
use std::sync::{Arc, Weak};

thread_local! {
    /// The caller of the work that this thread does; `None` if that work has no caller who could leave.
    static CALLER: RefCell<Option<Weak<()>>> = const { RefCell::new(None) };
}

/// A caller that waits for its work. It leaves when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Caller(Arc<()>);

/// The view that a working thread has of its caller.
#[derive(Debug)]
pub(super) struct CallerView(Weak<()>);

impl Caller {
    /// Returns the view for the thread that does the work.
    pub(super) fn view(&self) -> CallerView {
        CallerView(Arc::downgrade(&self.0))
    }
}

impl CallerView {
    /// Does `work`, which must not panic, for this caller.
    pub(super) fn during<T>(self, work: impl FnOnce() -> T) -> T {
        CALLER.set(Some(self.0));
        let result = work();
        CALLER.set(None);
        result
    }
}

/// True if the caller of the work that this thread does has left.
pub(super) fn has_left() -> bool {
    CALLER.with_borrow(|caller| caller.as_ref().is_some_and(|caller| caller.strong_count() == 0))
}
