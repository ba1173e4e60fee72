//! Marks that a model spells: the text `<|end|>` in an answer about chat formats consists of ordinary tokens and is no
//! mark. The parser reads text, so the first bracket of such texts is changed on the way in and changed back on the way
//! out.

use std::ops::Range;

use super::AnswerEvent;

/// Follows each bracket outside of special tokens. No text has this code point, which is not a character.
const NO_MARK: char = '\u{fdd0}';

/// Changes the text outside of `marks`, which are the places of special tokens in it, so that it contains no marks.
pub(super) fn hide(text: &str, marks: &[Range<usize>]) -> String {
    let mut hidden = String::with_capacity(text.len());
    let mut end = 0;
    for mark in marks {
        push_hidden(&mut hidden, &text[end..mark.start]);
        hidden.push_str(&text[mark.clone()]);
        end = mark.end;
    }
    push_hidden(&mut hidden, &text[end..]);
    hidden
}

fn push_hidden(hidden: &mut String, text: &str) {
    for part in text.split_inclusive('<') {
        hidden.push_str(part);
        if part.ends_with('<') {
            hidden.push(NO_MARK);
        }
    }
}

/// Changes the texts of events back, beginning with the event at `start`. Events without text are left out.
pub(super) fn show(events: &mut Vec<AnswerEvent>, start: usize) {
    for mut event in events.split_off(start) {
        let text = match &mut event {
            AnswerEvent::Reasoning(text) | AnswerEvent::Content(text) | AnswerEvent::Arguments(text) => Some(text),
            AnswerEvent::CallStarted { .. } | AnswerEvent::CallEnded => None,
        };
        let is_empty = text.is_some_and(|text| {
            text.retain(|c| c != NO_MARK);
            text.is_empty()
        });
        if !is_empty {
            events.push(event);
        }
    }
}
