//! The greeting, with which both sides of a connection begin.
//!
//! ```text
//! signature (10)  version (2)  mechanism (20)  as-server (1)  filler (31)
//! FF 0…0 7F       03 01        "NULL" 0…0      00             0…0
//! ```

use crate::ZmtpError;

/// The size of a greeting in bytes.
pub(crate) const GREETING_BYTES: usize = 64;

const MECHANISM: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Returns the greeting of this side.
pub(crate) fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xFF;
    greeting[9] = 0x7F;
    greeting[10..12].copy_from_slice(&[3, 1]);
    greeting[12..32].copy_from_slice(&MECHANISM);
    greeting
}

/// Checks the first bytes of a greeting, as far as they were received.
///
/// # Errors
/// When the peer speaks another protocol, an older version, or wants another mechanism.
pub(crate) fn check(received: &[u8]) -> Result<(), ZmtpError> {
    if received.first().is_some_and(|byte| *byte != 0xFF) || received.get(9).is_some_and(|byte| byte & 1 != 1) {
        return Err(ZmtpError::NotZmtp);
    }
    if let Some(version) = received.get(10).filter(|version| **version < 3) {
        return Err(ZmtpError::Version(*version));
    }
    match received.get(12..32) {
        Some(mechanism) if mechanism != MECHANISM => {
            let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
            Err(ZmtpError::Mechanism(String::from_utf8_lossy(name).into_owned()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_of_our_own_greeting_is_right() {
        for len in 0..=GREETING_BYTES {
            assert_eq!(check(&greeting()[..len]), Ok(()), "{len}");
        }
    }

    #[test]
    fn other_protocols_are_noticed_early() {
        assert_eq!(check(b"GET / HTTP/1.1"), Err(ZmtpError::NotZmtp));
        let with = |index: usize, byte: u8| {
            let mut greeting = greeting();
            greeting[index] = byte;
            check(&greeting)
        };
        assert_eq!(with(9, 0), Err(ZmtpError::NotZmtp));
        assert_eq!(with(10, 1), Err(ZmtpError::Version(1)));
        assert_eq!(with(11, 0), Ok(()));
        assert_eq!(with(12, b'C'), Err(ZmtpError::Mechanism("CULL".to_owned())));
    }
}
