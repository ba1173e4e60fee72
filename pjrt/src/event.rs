//! Events: the completion of asynchronous work, as a future or by blocking.

#![expect(unsafe_code, reason = "calls the plugin and is called back by it")]

use std::ffi::c_void;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::api::Api;
use crate::client::Client;
use crate::error::Error;
use crate::ffi::values::{EventAwait, EventDestroy, EventIsReady, EventOnReady, OnReadyCallback};
use crate::ffi::{RawError, RawEvent};
use crate::handle::Handle;

/// An event becomes ready when its asynchronous work has ended, with success or an error.
///
/// As a future it may be polled from any task; only the waker of the last poll is woken. It may be polled and waited
/// for any number of times, always with the same result. Dropping it does not stop the work.
#[derive(Debug)]
pub struct Event {
    /// `None` if there was nothing to wait for.
    raw: Option<Handle<RawEvent>>,
    listener: Option<Arc<Listener>>,
    what: &'static str,
    client: Client,
}

/// The state that the plugin's callback sets. It has the plugin's functions but keeps no client alive, because a client
/// must not be dropped on one of its own threads.
#[derive(Debug)]
struct Listener {
    api: Api,
    what: &'static str,
    state: Mutex<ListenerState>,
}

#[derive(Debug, Default)]
struct ListenerState {
    result: Option<Result<(), Error>>,
    waker: Option<Waker>,
}

impl Event {
    /// Takes ownership of an event of the plugin. Null means that there is nothing to wait for. `what` names the
    /// function that made the event.
    pub(crate) fn new(raw: *mut RawEvent, what: &'static str, client: &Client) -> Self {
        Self { raw: Handle::new(raw, what).ok(), listener: None, what, client: client.clone() }
    }

    /// True if the work has ended. Never blocks.
    pub fn is_ready(&self) -> bool {
        let Some(raw) = &self.raw else { return true };
        let arguments = EventIsReady { event: raw.get(), is_ready: false, tail: [0; 7] };
        // SAFETY: `self` owns the event. If the query fails, `wait` reports the error.
        unsafe { self.api().call(arguments) }.is_ok_and(|out| out.is_ready)
    }

    /// Blocks this thread until the work has ended.
    ///
    /// # Errors
    /// The error of the work.
    pub fn wait(&self) -> Result<(), Error> {
        let Some(raw) = &self.raw else { return Ok(()) };
        // SAFETY: `self` owns the event.
        let result = unsafe { self.api().call(EventAwait { event: raw.get() }) };
        result.map(drop).map_err(|error| named(error, self.what))
    }

    /// The plugin's functions.
    pub(crate) fn api(&self) -> &Api {
        self.client.api()
    }

    /// Drops `kept` when the work has ended, on any thread. If the callback cannot be registered, `kept` is leaked,
    /// because freeing it would risk a use of freed memory.
    ///
    /// # Safety
    /// `kept` comes from [`Kept::leak`] and nothing else frees it.
    pub(crate) unsafe fn release_when_ready<T: Send + 'static>(self, kept: NonNull<Kept<T>>) {
        let Some(raw) = &self.raw else {
            // SAFETY: the caller promised this, and there is nothing to wait for.
            unsafe { Kept::free(kept) };
            return;
        };
        let user_arg = kept.as_ptr().cast::<c_void>();
        // SAFETY: `self` owns the event, and `release` takes a `Kept<T>`.
        let _leaked = unsafe { register(self.api(), raw, release::<T>, user_arg) };
    }

    /// Registers a callback that wakes `waker`.
    fn listen(&self, raw: &Handle<RawEvent>, waker: &Waker) -> Result<Arc<Listener>, Error> {
        let state = ListenerState { result: None, waker: Some(waker.clone()) };
        let api = *self.api();
        let listener = Arc::new(Listener { api, what: self.what, state: Mutex::new(state) });
        let user_arg = Arc::into_raw(Arc::clone(&listener)).cast_mut().cast::<c_void>();
        // SAFETY: `self` owns the event, and `wake` takes the reference count that was just given away.
        let registered = unsafe { register(&api, raw, wake, user_arg) };
        if registered.is_err() {
            // SAFETY: a callback that is not registered is not called, so the reference count is still ours.
            drop(unsafe { Arc::from_raw(user_arg.cast::<Listener>().cast_const()) });
        }
        registered.map(|()| listener)
    }
}

impl Future for Event {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(raw) = &self.raw else { return Poll::Ready(Ok(())) };
        if self.listener.is_none() {
            if self.is_ready() {
                return Poll::Ready(self.wait());
            }
            match self.listen(raw, context.waker()) {
                Ok(listener) => self.listener = Some(listener),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let Some(listener) = &self.listener else { return Poll::Pending };
        let mut state = listener.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.result {
            Some(result) => Poll::Ready(result.clone()),
            None => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none @ None => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(raw) = &self.raw {
            // SAFETY: `self` owns the event and is not used afterwards. A failure cannot be reported.
            let _unheard = unsafe { self.api().call(EventDestroy { event: raw.get() }) };
        }
    }
}

/// A value that must outlive a transfer: memory that the plugin reads or writes.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    api: Api,
    owner: T,
}

impl<T: Send + 'static> Kept<T> {
    /// Moves `owner` to the heap, where it stays until [`Kept::free`] or [`Event::release_when_ready`] drops it.
    pub(crate) fn leak(api: Api, owner: T) -> NonNull<Self> {
        NonNull::from(Box::leak(Box::new(Self { api, owner })))
    }

    /// Borrows the owner.
    ///
    /// # Safety
    /// `kept` comes from [`Kept::leak`] and is not freed while the reference is used.
    pub(crate) unsafe fn owner<'a>(kept: NonNull<Self>) -> &'a T {
        // SAFETY: the caller promised that `kept` is alive.
        unsafe { &(*kept.as_ptr()).owner }
    }

    /// Drops the owner.
    ///
    /// # Safety
    /// `kept` comes from [`Kept::leak`]. It is freed only once, and no reference to it is used afterwards.
    pub(crate) unsafe fn free(kept: NonNull<Self>) {
        // SAFETY: the caller promised this.
        drop(unsafe { Box::from_raw(kept.as_ptr()) });
    }
}

/// Registers a callback for an event.
///
/// # Safety
/// The event is alive, and `user_arg` is what `callback` expects.
unsafe fn register(
    api: &Api,
    event: &Handle<RawEvent>,
    callback: OnReadyCallback,
    user_arg: *mut c_void,
) -> Result<(), Error> {
    // SAFETY: the caller promised this.
    unsafe { api.call(EventOnReady { event: event.get(), callback, user_arg }) }.map(drop)
}

/// Stores the result of an event and wakes the task that polled it.
///
/// # Safety
/// The plugin calls it once, with an error that the callback owns and a reference count of a [`Listener`].
unsafe extern "C" fn wake(error: *mut RawError, user_arg: *mut c_void) {
    // SAFETY: `listen` gave this reference count away for this call.
    let listener = unsafe { Arc::from_raw(user_arg.cast::<Listener>().cast_const()) };
    // SAFETY: the header says that the callback owns the error.
    let result = unsafe { listener.api.take_error(listener.what, error) };
    let waker = {
        let mut state = listener.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.result = Some(result);
        state.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Frees memory whose transfer has ended.
///
/// # Safety
/// The plugin calls it once, with an error that the callback owns and a leaked [`Kept<T>`].
unsafe extern "C" fn release<T: Send + 'static>(error: *mut RawError, user_arg: *mut c_void) {
    let Some(kept) = NonNull::new(user_arg.cast::<Kept<T>>()) else { return };
    // SAFETY: the caller of `release_when_ready` promised a leaked `Kept<T>`, and the header says that the callback
    // owns the error. The user of the transfer's result gets the error there.
    let _told_elsewhere = unsafe { (*kept.as_ptr()).api.take_error("PJRT_Event_OnReady", error) };
    // SAFETY: the plugin no longer uses the memory, and calls back only once.
    unsafe { Kept::free(kept) };
}

/// Replaces the function in the error, which waited for the work, by the one that started the work.
fn named(error: Error, what: &'static str) -> Error {
    match error {
        Error::Pjrt { code, message, .. } => Error::Pjrt { function: what, code, message },
        other @ (Error::Open { .. }
        | Error::Table { .. }
        | Error::Missing { .. }
        | Error::Arguments(_)
        | Error::ElementType(_)
        | Error::Contract { .. }) => other,
    }
}
