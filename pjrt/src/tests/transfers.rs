//! Tests of uploads and downloads: memory that is lent to the plugin exists until the transfer has ended, in whatever
//! order values are dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use super::{CountingWaker, Owner, assert_clean_soon, upload};
use crate::testing::{Kind, client, control, plugin};
use crate::{Client, ElementType, Error, HostSlice};

#[test]
fn bytes_go_there_and_back() {
    let client = client();
    let buffer = upload(&client, 1, &[1, 2, 3]);
    assert_eq!((buffer.element_type(), buffer.dims(), buffer.device().id()), (ElementType::U8, &[3][..], 1));
    assert_eq!(buffer.size_in_bytes().expect("reported"), 3);
    assert_eq!(buffer.layout().expect("the extension is there").to_string(), "{0}");
    buffer.ready().expect("an event").wait().expect("it is there");
    let download = buffer.to_host().expect("a download");
    assert!(download.is_ready());
    assert_eq!(download.wait().expect("the bytes"), [1, 2, 3]);
    drop((buffer, client));
    control().assert_clean();
}

#[test]
fn a_download_is_a_future_and_outlives_its_buffer() {
    let client = client();
    let buffer = upload(&client, 0, &[5, 6]);
    control().defer();
    let mut download = buffer.to_host().expect("a download");
    drop((buffer, client));
    let waker = Arc::<CountingWaker>::default();
    let task = Waker::from(Arc::clone(&waker));
    assert!(Pin::new(&mut download).poll(&mut Context::from_waker(&task)).is_pending());
    control().fire(None);
    assert_eq!(waker.count(), 1);
    let polled = Pin::new(&mut download).poll(&mut Context::from_waker(&task));
    assert!(matches!(polled, Poll::Ready(Ok(bytes)) if bytes == [5, 6]));
    drop(download);
    control().assert_clean();
}

#[test]
fn a_download_may_be_dropped_before_it_ends() {
    for is_polled in [false, true] {
        let client = client();
        control().is_deferred.store(false, Ordering::SeqCst);
        let buffer = upload(&client, 0, &[5, 6]);
        control().defer();
        let mut download = buffer.to_host().expect("a download");
        if is_polled {
            let waker = Waker::from(Arc::<CountingWaker>::default());
            assert!(Pin::new(&mut download).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop((download, buffer, client));
        assert_eq!(control().alive(Kind::Client), 1, "the transfer keeps the client");
        control().fire(None);
        assert_clean_soon();
    }
}

#[test]
fn a_failed_download_tells_why() {
    let client = client();
    let buffer = upload(&client, 0, &[5]);
    control().defer();
    let download = buffer.to_host().expect("a download");
    control().fire(Some((13, "computing it failed")));
    let error = download.wait().expect_err("failed");
    insta::assert_snapshot!(error, @"PJRT_Buffer_ToHostBuffer: internal: computing it failed");
    control().fail("PJRT_Buffer_ToHostBuffer", 8, "no memory");
    assert!(buffer.to_host().is_err());
    drop((buffer, client));
    control().assert_clean();
}

#[test]
fn an_owner_is_kept_until_the_transfer_ends() {
    let client = client();
    let owner = Owner::new(&[7, 8]);
    control().defer();
    let device = client.devices().swap_remove(0);
    let buffer = client.upload_owned(owner.clone(), ElementType::U8, &[2], &device).expect("an upload");
    assert_eq!(owner.others(), 1);
    control().fire(None);
    assert_eq!(owner.others(), 0);
    control().is_deferred.store(false, Ordering::SeqCst);
    assert_eq!(buffer.to_host().and_then(crate::Download::wait).expect("the bytes"), [7, 8]);
}

#[test]
fn an_owner_outlives_buffer_and_client() {
    let owner = Owner::new(&[7, 8]);
    let client = client();
    control().defer();
    let device = client.devices().swap_remove(0);
    drop(client.upload_owned(owner.clone(), ElementType::U8, &[2], &device).expect("an upload"));
    drop((device, client));
    assert_eq!(owner.others(), 1);
    assert_eq!(control().alive(Kind::Client), 1, "the transfer keeps the client");
    control().fire(Some((13, "nobody needs it")));
    assert_eq!(owner.others(), 0);
    assert_clean_soon();
}

#[test]
fn bytes_inside_of_the_owner_do_not_move() {
    struct Inline([u8; 4]);
    impl AsRef<[u8]> for Inline {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let client = client();
    control().defer();
    let device = client.devices().swap_remove(0);
    let buffer = client.upload_owned(Inline([1, 2, 3, 4]), ElementType::U32, &[1], &device).expect("an upload");
    control().fire(None);
    control().is_deferred.store(false, Ordering::SeqCst);
    assert_eq!(buffer.to_host().and_then(crate::Download::wait).expect("the bytes"), [1, 2, 3, 4]);
}

/// Without the event of a transfer, its memory might be freed, or shown, while the plugin uses it.
#[test]
#[cfg_attr(miri, ignore = "the memory is leaked on purpose")]
fn a_transfer_without_an_event_is_an_error_and_its_memory_is_leaked() {
    let client = client();
    let buffer = upload(&client, 0, &[5]);
    control().defer();
    control().lacks_events.store(true, Ordering::SeqCst);
    let error = buffer.to_host().expect_err("no event");
    insta::assert_snapshot!(error, @"PJRT_Buffer_ToHostBuffer: the plugin returned a null object");
    let owner = Owner::new(&[7]);
    let error = client.upload_owned(owner.clone(), ElementType::U8, &[1], &client.devices()[0]).expect_err("no event");
    insta::assert_snapshot!(error, @"PJRT_Client_BufferFromHostBuffer: the plugin returned a null object");
    assert_eq!(owner.others(), 1);
    let error = buffer.ready().expect_err("no event");
    insta::assert_snapshot!(error, @"PJRT_Buffer_ReadyEvent: the plugin returned a null object");
    // Both transfers still use their memory.
    control().fire(None);
    assert_eq!(control().alive(Kind::Buffer), 1);
}

#[test]
fn an_upload_that_is_refused_gives_the_owner_back() {
    let client = client();
    let owner = Owner::new(&[9]);
    let device = client.devices().swap_remove(0);
    let short = client.upload_owned(owner.clone(), ElementType::F32, &[1], &device);
    assert!(matches!(short, Err(Error::Arguments(_))));
    control().fail("PJRT_Client_BufferFromHostBuffer", 8, "no memory");
    let refused = client.upload_owned(owner.clone(), ElementType::U8, &[1], &device);
    insta::assert_snapshot!(
        refused.expect_err("refused"),
        @"PJRT_Client_BufferFromHostBuffer: resource exhausted: no memory"
    );
    assert_eq!(owner.others(), 0);
    assert_eq!(control().alive(Kind::Buffer), 0);
}

#[test]
fn devices_of_another_client_are_refused() {
    let plugin = plugin();
    let [one, two] = [(); 2].map(|()| Client::new(&plugin, &[]).expect("a fake client"));
    let host = HostSlice::new(ElementType::U8, &[1], &[1]).expect("one byte");
    let error = one.upload(host, &two.devices()[0]).expect_err("refused");
    let expected = "the device of an upload belongs to another client; this is a defect of this server";
    assert_eq!(error.to_string(), expected);
}
