//! Where text says stop. A stop string counts as soon as the text contains it, even when it ends in the middle of a
//! token: TGI only looks at the end of the text and misses those. The stop string stays part of the text, as in
//! TGI.
//!
//! It never holds text back and never ends a sequence: it says where the text should end, and how much of it may be the
//! beginning of a stop string.

/// Watches one sequence's text for its stop strings.
#[derive(Debug)]
pub(crate) struct StopStrings {
    stop_strings: Vec<String>,
    /// The end of the text so far: as much as the beginning of a stop string can take.
    tail: String,
}

/// A stop string in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopFound {
    /// Bytes behind it.
    pub(crate) rest_bytes: usize,
    /// Its own.
    pub(crate) len_bytes: usize,
    /// Which of the stop strings it is.
    pub(crate) index: usize,
}

impl StopStrings {
    /// Watches for non-empty strings.
    pub(crate) fn new(stop_strings: Vec<String>) -> Self {
        Self { stop_strings, tail: String::new() }
    }

    /// Adds text. Where the stop string is that ended first, when there is one.
    pub(crate) fn push(&mut self, piece: &str) -> Option<StopFound> {
        let max_len = self.stop_strings.iter().map(String::len).max()?;
        self.tail.push_str(piece);
        let place = |(index, stop): (usize, &String)| Some((self.tail.find(stop)? + stop.len(), stop.len(), index));
        let places = self.stop_strings.iter().enumerate().filter_map(place);
        // Of several that end together the longest.
        if let Some((end, len_bytes, index)) = places.min_by_key(|(end, len, _)| (*end, std::cmp::Reverse(*len))) {
            return Some(StopFound { rest_bytes: self.tail.len() - end, len_bytes, index });
        }
        let keep_from = self.tail.floor_char_boundary((self.tail.len() + 1).saturating_sub(max_len));
        self.tail.drain(..keep_from);
        None
    }

    /// Bytes at the end of `text` with which a stop string may begin.
    pub(crate) fn num_held_back(&self, text: &str) -> usize {
        let held = |stop: &String| {
            let longest = stop.len().saturating_sub(1).min(text.len());
            (1..=longest).rev().find(|len| text.as_bytes().ends_with(&stop.as_bytes()[..*len])).unwrap_or(0)
        };
        self.stop_strings.iter().map(held).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(stop_strings: &[&str], pieces: &[&str], expected: Option<usize>) {
        let mut stops = StopStrings::new(stop_strings.iter().map(|&stop| stop.to_owned()).collect());
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
    }

    #[test]
    fn what_may_be_a_beginning_is_held_back() {
        let stops = StopStrings::new(["abc", "bcd", "\n\n"].map(str::to_owned).to_vec());
        for (text, expected) in
            [("", 0), ("xa", 1), ("xab", 2), ("abcx", 0), ("b", 1), ("abd", 0), ("\n", 1), ("xbc", 2)]
        {
            assert_eq!(stops.num_held_back(text), expected, "{text:?}");
        }
        assert_eq!(StopStrings::new(Vec::new()).num_held_back("abc"), 0);
    }

    proptest! {
        #[test]
        fn the_cut_does_not_depend_on_the_pieces(
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
            pieces in prop::collection::vec("[abé]{0,3}", 0..12),
        ) {
            let text = pieces.concat();
            let expected = stops.iter().filter_map(|stop| text.find(stop).map(|start| start + stop.len())).min();
            let mut watcher = StopStrings::new(stops);
            let mut len = 0;
            let found = pieces.iter().find_map(|piece| {
                len += piece.len();
                watcher.push(piece).map(|found| len - found.rest_bytes)
            });
            prop_assert_eq!(found, expected);
        }
    }
}
