//! Where text says stop. A stop string counts as soon as the text contains it, even when it ends in the middle of a
//! token: TGI only looks at the end of the text and misses those. The stop string stays part of the text, as in
//! TGI.
//!
//! It never holds text back and never ends a sequence: it says where the text should end.

/// Watches one sequence's text for its stop strings.
#[derive(Debug)]
pub(crate) struct StopStrings {
    stop_strings: Vec<String>,
    /// The end of the text so far: as much as the beginning of a stop string can take.
    tail: String,
}

impl StopStrings {
    /// Watches for non-empty strings.
    pub(crate) fn new(stop_strings: Vec<String>) -> Self {
        Self { stop_strings, tail: String::new() }
    }

    /// Adds text. The number of bytes after the stop string that ended first, when there is one.
    pub(crate) fn push(&mut self, piece: &str) -> Option<usize> {
        let max_len = self.stop_strings.iter().map(String::len).max()?;
        self.tail.push_str(piece);
        let ends = self.stop_strings.iter().filter_map(|stop| self.tail.find(stop).map(|start| start + stop.len()));
        if let Some(end) = ends.min() {
            return Some(self.tail.len() - end);
        }
        let keep_from = self.tail.floor_char_boundary((self.tail.len() + 1).saturating_sub(max_len));
        self.tail.drain(..keep_from);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(stop_strings: &[&str], pieces: &[&str], expected: Option<usize>) {
        let mut stops = StopStrings::new(stop_strings.iter().map(|&stop| stop.to_owned()).collect());
        let found = pieces.iter().find_map(|piece| stops.push(piece));
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
                watcher.push(piece).map(|rest| len - rest)
            });
            prop_assert_eq!(found, expected);
        }
    }
}
