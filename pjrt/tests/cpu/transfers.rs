//! Tests of copying arrays to a device and back, and of releasing the memory that was lent.

use std::sync::mpsc;

use pjrt::{Argument, ElementType};

use super::{PATIENCE, add, client, download, run, upload};

/// Bytes that send a message when they are dropped.
struct Told(Vec<u8>, mpsc::Sender<()>);

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // If the test has failed, there is no receiver.
        let _unheard = self.1.send(());
    }
}

#[test]
fn every_element_type_goes_there_and_back_and_adds() {
    let Some(client) = client() else { return };
    let device = &client.addressable_devices()[0];
    for element_type in ElementType::all() {
        // The bytes of 1 and of 1 + 1. For booleans, both are the bytes of true.
        let (one, two): (&[u8], &[u8]) = match element_type {
            ElementType::Pred => (&[1], &[1]),
            ElementType::S4 | ElementType::S8 | ElementType::U8 => (&[1], &[2]),
            ElementType::S32 | ElementType::U32 => (&[1, 0, 0, 0], &[2, 0, 0, 0]),
            ElementType::F8E4M3FN => (&[0x38], &[0x40]),
            ElementType::F16 => (&[0, 0x3c], &[0, 0x40]),
            ElementType::Bf16 => (&[0x80, 0x3f], &[0, 0x40]),
            ElementType::F32 => (&[0, 0, 0x80, 0x3f], &[0, 0, 0, 0x40]),
        };
        let op = if element_type == ElementType::Pred { "or" } else { "add" };
        let program = add(&client, &format!("2x3x{element_type}"), op);
        let a = upload(device, element_type, &[2, 3], &one.repeat(6));
        assert_eq!(download(&a), one.repeat(6), "{element_type}");
        let outputs = run(&program, vec![Argument::Keep(&a), Argument::Keep(&a)]);
        assert_eq!(download(&outputs[0]), two.repeat(6), "{element_type}");
        assert_eq!((outputs[0].element_type(), outputs[0].dims()), (element_type, &[2, 3][..]));
        assert_eq!(program.executable().outputs().expect("reported"), [outputs[0].shape().clone()]);
    }
}

#[test]
fn four_bit_integers_are_bytes_on_the_host_and_packed_on_the_device() {
    let Some(client) = client() else { return };
    let device = &client.addressable_devices()[0];
    let values = [-8_i8, -1, 0, 7].map(i8::cast_unsigned);
    let buffer = upload(device, ElementType::S4, &[4], &values);
    assert_eq!(download(&buffer).iter().map(|value| value & 15).collect::<Vec<_>>(), values.map(|value| value & 15));
    assert_eq!(buffer.size_in_bytes().expect("reported"), 2);
}

#[test]
fn dense_and_row_major_whatever_the_rank() {
    let Some(client) = client() else { return };
    let device = &client.addressable_devices()[0];
    for dims in [&[][..], &[0], &[3, 0, 2], &[2, 3, 4], &[1, 1, 2, 1, 3]] {
        let bytes: Vec<u8> = (0..dims.iter().product::<usize>()).map(|index| u8::try_from(index).unwrap()).collect();
        assert_eq!(download(&upload(device, ElementType::U8, dims, &bytes)), bytes, "{dims:?}");
    }
}

#[test]
fn owners_are_released_when_their_bytes_are_read() {
    let Some(client) = client() else { return };
    let device = &client.addressable_devices()[0];
    for is_dropped_early in [false, true] {
        let (sender, dropped) = mpsc::channel();
        let owner = Told(vec![7; 1 << 20], sender);
        let buffer = client.upload_owned(owner, ElementType::U8, &[1 << 20], device).expect("an upload");
        if is_dropped_early {
            drop(buffer);
        } else {
            assert!(download(&buffer).iter().all(|byte| *byte == 7));
        }
        dropped.recv_timeout(PATIENCE).expect("the owner is dropped");
    }
}
