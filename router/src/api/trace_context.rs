//! W3C Trace Context, level 1: the header `traceparent`, with which a client names the trace of its request.
//!
//! The trace id and the parent id are written to the log lines of the request, so that the lines can be found from the
//! trace. The server has no spans of its own, because nothing exports them. An invalid header is ignored, as the
//! specification requires.

use axum::http::{HeaderMap, HeaderName};

use crate::generation::Trace;

/// The header that contains the trace.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The length of the header: version, trace id, parent id and flags in hexadecimal, with dashes between them.
const LEN: usize = 55;

/// Returns the trace, if exactly one valid header names it.
pub(super) fn trace(headers: &HeaderMap) -> Option<Trace> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    parse(value.to_str().ok()?)
}

fn parse(value: &str) -> Option<Trace> {
    let (known, rest) = value.split_at_checked(LEN)?;
    let mut fields = known.split('-');
    let mut field = |num_digits| number(fields.next()?, num_digits);
    let (version, trace_id, parent_id, _flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    // Later versions of the specification may add fields.
    let may_end_so = rest.is_empty() || (version > 0 && rest.starts_with('-'));
    let is_valid = version != 255 && may_end_so && trace_id != 0 && parent_id != 0;
    is_valid.then_some(Trace { trace_id, parent_id: u64::try_from(parent_id).ok()? })
}

/// Parses exactly `num_digits` hexadecimal digits in lower case.
fn number(digits: &str, num_digits: usize) -> Option<u128> {
    let is_hexadecimal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let is_number = digits.len() == num_digits && is_hexadecimal;
    u128::from_str_radix(digits, 16).ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn is_valid(value: &str) -> bool {
        parse(value).is_some()
    }

    #[test]
    fn a_valid_header_has_both_ids() {
        let Trace { trace_id, parent_id } = parse(&format!("00-{TRACE}-{PARENT}-01")).unwrap();
        assert_eq!((format!("{trace_id:032x}"), format!("{parent_id:016x}")), (TRACE.to_owned(), PARENT.to_owned()));
    }

    #[test]
    fn later_versions_may_say_more() {
        for (value, expected) in [
            (format!("00-{TRACE}-{PARENT}-00"), true),
            (format!("cc-{TRACE}-{PARENT}-01"), true),
            (format!("cc-{TRACE}-{PARENT}-01-more"), true),
            (format!("cc-{TRACE}-{PARENT}-01more"), false),
            (format!("00-{TRACE}-{PARENT}-01-more"), false),
            (format!("ff-{TRACE}-{PARENT}-01"), false),
        ] {
            assert_eq!(is_valid(&value), expected, "{value}");
        }
    }

    #[test]
    fn everything_else_is_ignored() {
        for value in [
            String::new(),
            "00".to_owned(),
            format!("00-{}-{PARENT}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{PARENT}-0x"),
            format!("00-{TRACE}-{PARENT}-1"),
            format!("00-{TRACE}-{PARENT}01-"),
            format!("0-{TRACE}0-{PARENT}-01"),
            format!("00_{TRACE}_{PARENT}_01"),
            format!("+0-{TRACE}-{PARENT}-01"),
            format!(" 00-{TRACE}-{PARENT}-01"),
            format!("00-{}-{PARENT}-01", TRACE.replace('4', "é")),
        ] {
            assert!(!is_valid(&value), "{value:?}");
        }
    }

    #[test]
    fn two_headers_are_none() {
        let value = HeaderValue::from_str(&format!("00-{TRACE}-{PARENT}-01")).unwrap();
        let mut headers = HeaderMap::new();
        assert_eq!(trace(&headers), None);
        headers.append(TRACEPARENT, value.clone());
        assert!(trace(&headers).is_some());
        headers.append(TRACEPARENT, value);
        assert_eq!(trace(&headers), None);
    }
}
