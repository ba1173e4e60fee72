//! Finds stop strings. A stop string counts as soon as the text contains it, even if it ends inside a token; TGI only
//! looks at the end of the text and misses such stop strings.
//!
//! This module never holds text back and never ends a sequence. It returns the position and the length of the stop
//! string, and the number of bytes at the end of the text that may be the start of a stop string.

use std::sync::Arc;

/// The stop strings of a request, prepared for the search. Clones are cheap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StopPatterns(Arc<[Pattern]>);

/// A stop string with the failure table of Knuth, Morris and Pratt (1977): for each prefix of the stop string, the
/// length of the longest shorter prefix that is also a suffix of this prefix.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    bytes: Box<[u8]>,
    borders: Box<[usize]>,
}

/// Searches one sequence's text for its stop strings. Each byte of the text is read once, however long the stop strings
/// are.
#[derive(Debug)]
pub(crate) struct StopStrings {
    patterns: StopPatterns,
    /// For each pattern, the length of its longest prefix at the end of the text.
    matched: Vec<usize>,
}

/// A stop string found in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopFound {
    /// The number of bytes after the stop string in the added text.
    pub(crate) rest_bytes: usize,
    /// The length of the stop string in bytes.
    pub(crate) len_bytes: usize,
    /// The index of the stop string in the request.
    pub(crate) index: usize,
}

impl StopPatterns {
    /// Prepares stop strings, which must not be empty.
    pub(crate) fn new(stop_strings: &[String]) -> Self {
        Self(stop_strings.iter().map(|stop| Pattern::new(stop.as_bytes())).collect())
    }
}

impl Pattern {
    fn new(bytes: &[u8]) -> Self {
        let mut pattern = Self { bytes: bytes.into(), borders: Box::default() };
        let mut borders = vec![0; bytes.len()];
        let mut len = 0;
        for (index, byte) in bytes.iter().enumerate().skip(1) {
            while len > 0 && bytes[len] != *byte {
                len = borders[len - 1];
            }
            len += usize::from(bytes[len] == *byte);
            borders[index] = len;
        }
        pattern.borders = borders.into();
        pattern
    }

    /// Returns the length of the prefix that matches after one more byte, if `len` bytes matched before it.
    fn advance(&self, mut len: usize, byte: u8) -> usize {
        while len > 0 && self.bytes[len] != byte {
            len = self.borders[len - 1];
        }
        len + usize::from(self.bytes[len] == byte)
    }
}

impl StopStrings {
    /// Starts a search for these patterns.
    pub(crate) fn new(patterns: StopPatterns) -> Self {
        Self { matched: vec![0; patterns.0.len()], patterns }
    }

    /// Adds text. Returns the stop string that ends first, and if several end at the same byte, the longest of them. No
    /// text may be added after one was found.
    pub(crate) fn push(&mut self, piece: &str) -> Option<StopFound> {
        for (place, byte) in piece.bytes().enumerate() {
            let mut found: Option<StopFound> = None;
            for (index, (pattern, matched)) in self.patterns.0.iter().zip(&mut self.matched).enumerate() {
                *matched = pattern.advance(*matched, byte);
                let len_bytes = pattern.bytes.len();
                if *matched == len_bytes && found.is_none_or(|found| found.len_bytes < len_bytes) {
                    found = Some(StopFound { rest_bytes: piece.len() - place - 1, len_bytes, index });
                }
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The number of bytes at the end of the text that may begin a stop string.
    pub(crate) fn num_held_back(&self) -> usize {
        self.matched.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn watch(stop_strings: &[impl ToString]) -> StopStrings {
        let stop_strings: Vec<String> = stop_strings.iter().map(ToString::to_string).collect();
        StopStrings::new(StopPatterns::new(&stop_strings))
    }

    fn check(stop_strings: &[&str], pieces: &[&str], expected: Option<usize>) {
        let mut stops = watch(stop_strings);
        let found = pieces.iter().find_map(|piece| stops.push(piece)).map(|found| found.rest_bytes);
        assert_eq!(found, expected, "{stop_strings:?} in {pieces:?}");
    }

    #[test]
    fn a_stop_string_is_found_wherever_it_ends() {
        check(&[], &["a", "b"], None);
        check(&["b"], &["a", "b"], Some(0));
        check(&["b"], &["abc"], Some(1));
        check(&["abc"], &["xa", "", "b", "cd"], Some(1));
        check(&["abc"], &["ab", "ab", "d"], None);
        check(&["\n\n", "."], &["x\n", "\n.y"], Some(2));
        check(&["é!"], &["caf", "é", "!"], Some(0));
        check(&["aab"], &["aaa", "ab!"], Some(1));
        let found = watch(&["b", "ab", "c"]).push("xab");
        assert_eq!(
            found,
            Some(StopFound { rest_bytes: 0, len_bytes: 2, index: 1 }),
            "the longest of those that end together"
        );
    }

    #[test]
    fn a_possible_beginning_of_a_stop_string_is_held_back() {
        for (text, expected) in
            [("", 0), ("xa", 1), ("xab", 2), ("abcx", 0), ("b", 1), ("abd", 0), ("\n", 1), ("xbc", 2), ("bcbc", 2)]
        {
            let mut stops = watch(&["abce", "bcd", "\n\n"]);
            assert_eq!(stops.push(text), None, "{text:?}");
            assert_eq!(stops.num_held_back(), expected, "{text:?}");
        }
        assert_eq!(watch(&[""; 0]).num_held_back(), 0);
    }

    proptest! {
        #[test]
        fn the_cut_does_not_depend_on_the_pieces(
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
            pieces in prop::collection::vec("[abé]{0,3}", 0..12),
        ) {
            let text = pieces.concat();
            let expected = stops.iter().filter_map(|stop| text.find(stop).map(|start| start + stop.len())).min();
            let mut watcher = watch(&stops);
            let mut len = 0;
            let found = pieces.iter().find_map(|piece| {
                len += piece.len();
                watcher.push(piece).map(|found| len - found.rest_bytes)
            });
            prop_assert_eq!(found, expected);
        }
    }
}
