//! Events: notifications that asynchronous work has ended. A caller can poll an event as a future or block on it.

#![expect(unsafe_code, reason = "calls the plugin and is called back by it")]

use std::cell::Cell;
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

thread_local! {
    /// True while the plugin calls one of this module's callbacks on this thread.
    static IS_IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// An event of the plugin, which becomes ready when the event's asynchronous work has ended, with success or an error.
///
/// An event is a future that any task may poll, but only the waker of the last poll is woken. The plugin may wake and
/// drop the waker on a thread of its own. The waker may own values of this crate, even the last clone of the client.
/// After the work has ended, the event may be polled and waited for again, with the same result. Dropping the event
/// does not stop the work.
#[derive(Debug)]
pub struct Event {
    raw: Handle<RawEvent>,
    listener: Option<Arc<Listener>>,
    what: &'static str,
    client: Client,
}

/// The state that the event and the plugin's callback share. The callback sets the result.
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
    /// Takes ownership of an event of the plugin. `what` names the C function that returned the event.
    ///
    /// # Errors
    /// When the event is null. The header allows no null events, so nobody knows when the work ends.
    pub(crate) fn new(raw: *mut RawEvent, what: &'static str, client: &Client) -> Result<Self, Error> {
        Ok(Self { raw: Handle::new(raw, what)?, listener: None, what, client: client.clone() })
    }

    /// True if the plugin reports that the work of the event has ended. Does not wait for the work.
    pub fn is_ready(&self) -> bool {
        let arguments = EventIsReady { event: self.raw.get(), is_ready: 0, tail: [0; 7] };
        // SAFETY: `self` owns the event.
        unsafe { self.api().call(arguments) }.is_ok_and(|out| out.is_ready != 0)
    }

    /// Blocks this thread until the work of the event has ended.
    ///
    /// # Errors
    /// The error with which the work ended, or [`Error::Missing`] if the plugin cannot wait.
    pub fn wait(&self) -> Result<(), Error> {
        // SAFETY: `self` owns the event.
        let result = unsafe { self.api().call(EventAwait { event: self.raw.get() }) };
        result.map(drop).map_err(|error| named(error, self.what))
    }

    /// The client of the event.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    fn api(&self) -> &Api {
        self.client.api()
    }

    /// Drops `kept` when the work of the event has ended. This may happen on a thread of the plugin.
    ///
    /// # Errors
    /// When the plugin registers no callback. Then `kept` stays leaked, because the plugin may still use its memory.
    ///
    /// # Safety
    /// `kept` comes from [`Kept::leak`] and nothing else frees it.
    pub(crate) unsafe fn release_when_ready<T: Send + 'static>(self, kept: NonNull<Kept<T>>) -> Result<(), Error> {
        let user_arg = kept.as_ptr().cast::<c_void>();
        // SAFETY: `self` owns the event, and `release::<T>` expects a leaked `Kept<T>`.
        unsafe { register(self.api(), &self.raw, release::<T>, user_arg) }
    }

    /// Registers a callback that wakes `waker` when the work has ended. Returns the state that the callback will set.
    fn listen(&self, waker: &Waker) -> Result<Arc<Listener>, Error> {
        let state = ListenerState { result: None, waker: Some(waker.clone()) };
        let api = *self.api();
        let listener = Arc::new(Listener { api, what: self.what, state: Mutex::new(state) });
        let user_arg = Arc::into_raw(Arc::clone(&listener)).cast_mut().cast::<c_void>();
        // SAFETY: `self` owns the event, and `wake` takes over the reference count that `into_raw` has just given away.
        let registered = unsafe { register(&api, &self.raw, wake, user_arg) };
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
        if self.listener.is_none() {
            if self.is_ready() {
                return Poll::Ready(self.wait());
            }
            match self.listen(context.waker()) {
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
        // SAFETY: `self` owns the event and is not used afterwards. A failure cannot be reported.
        let _unheard = unsafe { self.api().call(EventDestroy { event: self.raw.get() }) };
    }
}

/// The owner of memory that the plugin reads or writes in a transfer, and the client of the transfer. Both must outlive
/// the transfer.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    owner: T,
    client: Client,
}

impl<T: Send + 'static> Kept<T> {
    /// Moves `owner` to the heap, where it stays until [`Kept::free`] or [`Event::release_when_ready`] drops it.
    pub(crate) fn leak(client: &Client, owner: T) -> NonNull<Self> {
        NonNull::from(Box::leak(Box::new(Self { owner, client: client.clone() })))
    }

    /// Borrows the owner of the memory.
    ///
    /// # Safety
    /// `kept` comes from [`Kept::leak`] and is not freed while the reference is used.
    pub(crate) unsafe fn owner<'a>(kept: NonNull<Self>) -> &'a T {
        // SAFETY: the caller promised that `kept` is not freed while the reference is used.
        unsafe { &(*kept.as_ptr()).owner }
    }

    /// Drops the owner of the memory, and the clone of the client.
    ///
    /// # Safety
    /// `kept` comes from [`Kept::leak`]. It is freed only once, and no reference to it is used afterwards.
    pub(crate) unsafe fn free(kept: NonNull<Self>) {
        // SAFETY: the caller promised that `kept` is leaked and is freed only once.
        drop(unsafe { Box::from_raw(kept.as_ptr()) });
    }
}

/// Marks this thread as inside a callback of the plugin. Dropping the mark restores the earlier state.
struct CallbackMark {
    was_in_callback: bool,
}

impl CallbackMark {
    fn set() -> Self {
        Self { was_in_callback: IS_IN_CALLBACK.replace(true) }
    }
}

impl Drop for CallbackMark {
    fn drop(&mut self) {
        IS_IN_CALLBACK.set(self.was_in_callback);
    }
}

/// True if the plugin is calling this crate on this thread, which may be a thread of a client. A client that is
/// destroyed here might wait for this very thread.
pub(crate) fn is_in_callback() -> bool {
    IS_IN_CALLBACK.get()
}

/// Registers a callback for an event.
///
/// # Safety
/// The event has not been destroyed, and `user_arg` is what `callback` expects.
unsafe fn register(
    api: &Api,
    event: &Handle<RawEvent>,
    callback: OnReadyCallback,
    user_arg: *mut c_void,
) -> Result<(), Error> {
    // SAFETY: the caller promised that the event exists and that `user_arg` suits the callback.
    unsafe { api.call(EventOnReady { event: event.get(), callback, user_arg }) }.map(drop)
}

/// The callback that stores the result of an event and wakes the task that polled the event last.
///
/// # Safety
/// The plugin calls this function once, with an error that the function owns and a reference count of a [`Listener`].
unsafe extern "C" fn wake(error: *mut RawError, user_arg: *mut c_void) {
    let _mark = CallbackMark::set();
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

/// The callback that frees the memory of a transfer that has ended.
///
/// # Safety
/// The plugin calls this function once, with an error that the function owns and a leaked [`Kept<T>`].
unsafe extern "C" fn release<T: Send + 'static>(error: *mut RawError, user_arg: *mut c_void) {
    let _mark = CallbackMark::set();
    let Some(kept) = NonNull::new(user_arg.cast::<Kept<T>>()) else { return };
    // SAFETY: the caller of `release_when_ready` promised that `kept` is leaked, and the header says that the callback
    // owns the error. The error is ignored here: later uses of an uploaded buffer fail, and nobody awaits a download
    // that was dropped.
    let _told_elsewhere = unsafe { (*kept.as_ptr()).client.api().take_error("PJRT_Event_OnReady", error) };
    // SAFETY: the plugin no longer uses the memory, and it calls this function only once.
    unsafe { Kept::free(kept) };
}

/// Replaces the C function in an error of the plugin by `what`, so that the error names the function that started the
/// work and not the one that waited for it.
fn named(error: Error, what: &'static str) -> Error {
    match error {
        Error::Pjrt { code, message, .. } => Error::Pjrt { function: what, code, message },
        other @ (Error::Open { .. }
        | Error::Library { .. }
        | Error::Table { .. }
        | Error::Missing { .. }
        | Error::Arguments(_)
        | Error::ElementType(_)
        | Error::Contract { .. }) => other,
    }
}
