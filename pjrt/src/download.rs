//! Copies from a device to host memory.

#![expect(unsafe_code, reason = "lends host memory to the plugin for the length of a transfer")]

use std::ffi::c_void;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::buffer::Buffer;
use crate::error::Error;
use crate::event::{Event, Kept};
use crate::ffi::buffer::BufferToHostBuffer;
use crate::ffi::values::{MEMORY_LAYOUT_TILED, MemoryLayout, TiledLayout};
use crate::ffi::{Arguments, Struct};

/// A copy to host memory that has been started: a future of the bytes, which are dense, row-major and little-endian.
///
/// A download may be dropped before the transfer has ended: the host memory is freed only after the transfer.
#[derive(Debug)]
pub struct Download {
    /// `None` after the bytes were returned.
    transfer: Option<Transfer>,
}

#[derive(Debug)]
struct Transfer {
    event: Event,
    bytes: Vec<u8>,
}

impl Download {
    /// Starts to copy the content of `buffer`.
    pub(crate) fn start(buffer: &Buffer) -> Result<Self, Error> {
        let api = *buffer.client().api();
        let rank = i64::try_from(buffer.dims().len()).unwrap_or(i64::MAX);
        let minor_to_major: Vec<i64> = (0..rank).rev().collect();
        let mut layout = row_major(&minor_to_major);
        let mut call = Struct::new(BufferToHostBuffer {
            buffer: buffer.raw(),
            host_layout: &raw mut layout,
            dst: std::ptr::null_mut(),
            dst_size: 0,
            event: std::ptr::null_mut(),
        });
        // SAFETY: `buffer` owns the plugin's buffer. Without a destination, the call only returns the size.
        unsafe { api.call_struct(&mut call) }?;
        let mut bytes = vec![0_u8; call.fields.dst_size];
        call.fields.dst = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: the destination has the size that the plugin returned. It exists until the event is ready: `bytes` is
        // neither touched nor freed before that, see `take` and `drop`.
        unsafe { api.call_struct(&mut call) }?;
        match Event::new(call.fields.event, BufferToHostBuffer::NAME, buffer.client()) {
            Ok(event) => Ok(Self { transfer: Some(Transfer { event, bytes }) }),
            Err(error) => {
                // Nobody knows when the plugin stops writing, so the destination is never freed.
                bytes.leak();
                Err(error)
            }
        }
    }

    /// Blocks this thread until the bytes have arrived, and returns them.
    ///
    /// # Errors
    /// The reason why the content was not computed or copied.
    ///
    /// # Panics
    /// When a poll has returned the bytes before.
    pub fn wait(mut self) -> Result<Vec<u8>, Error> {
        if let Some(transfer) = &self.transfer {
            transfer.event.wait()?;
        }
        Ok(self.take())
    }

    /// True if the plugin reports that the transfer has ended, with success or an error. Does not wait for it.
    pub fn is_ready(&self) -> bool {
        self.transfer.as_ref().is_none_or(|transfer| transfer.event.is_ready())
    }

    /// Takes the bytes. The event must be ready.
    ///
    /// # Panics
    /// When the bytes were taken before.
    fn take(&mut self) -> Vec<u8> {
        self.transfer.take().expect("a download is not polled after it gave its bytes").bytes
    }
}

impl Future for Download {
    type Output = Result<Vec<u8>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let event = self.transfer.as_mut().map(|transfer| Pin::new(&mut transfer.event));
        match event.map(|event| event.poll(context)) {
            Some(Poll::Pending) => Poll::Pending,
            Some(Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            Some(Poll::Ready(Ok(()))) | None => Poll::Ready(Ok(self.take())),
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let Some(Transfer { event, bytes }) = self.transfer.take() else { return };
        if !event.is_ready() {
            let kept = Kept::leak(event.client(), bytes);
            // SAFETY: `kept` was leaked just now, and nothing else frees it.
            let _leaked = unsafe { event.release_when_ready(kept) };
        }
    }
}

/// Returns the layout of dense row-major arrays in host memory. `minor_to_major` lists the dimensions, the last one
/// first.
fn row_major(minor_to_major: &[i64]) -> Struct<MemoryLayout> {
    Struct::new(MemoryLayout {
        tiled: TiledLayout {
            struct_size: size_of::<TiledLayout>(),
            extension_start: std::ptr::null(),
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            tile_dims: std::ptr::null(),
            tile_dim_sizes: std::ptr::null(),
            num_tiles: 0,
        },
        kind: MEMORY_LAYOUT_TILED,
        tail: 0,
    })
}
