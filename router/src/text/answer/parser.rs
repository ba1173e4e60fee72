//! The parser of answers in all formats. An answer is text in which an opener may begin a call or a thought, after
//! which there may be text again.
//!
//! The parser decides only when the text so far has a single possible meaning, so the result does not depend on how the
//! text was cut into pieces. Undecided text is kept.

use std::ops::Range;

use super::AnswerEvent;
use super::call::{Arguments, Head, ReadParameter, Tail};
use super::form::{AnswerForm, Format};
use super::json_value::JsonValue;
use super::scan::{Cursor, Miss};
use super::spelled;
use super::tools::Tool;

/// The parser of one answer.
#[derive(Debug)]
pub(crate) struct AnswerParser {
    form: AnswerForm,
    /// The text that is not read yet.
    text: String,
    state: State,
    /// True directly after a mark, where white space belongs to the mark and is left out.
    is_after_mark: bool,
    /// True until the first text of a message that has a header.
    begins_message: bool,
    has_content: bool,
    has_reasoning: bool,
    num_calls: usize,
}

/// The part of the answer that the parser is in. It decides what the next text means.
#[derive(Debug)]
enum State {
    Text,
    /// After an opener, or after the text that separates two calls. `mark` is this text with the white space before it.
    /// It becomes content if the text after it does not fit the format.
    Head {
        opener: &'static str,
        mark: String,
    },
    Arguments(JsonValue),
    /// Inside a message with arguments, which ends at one of `closers`. `json` is `None` if they are no JSON object.
    Message {
        json: Option<JsonValue>,
        closers: &'static [&'static str],
    },
    Parameters {
        read: ReadParameter,
        tool: Tool,
        num_read: usize,
    },
    Tail,
    /// Inside a thought, which ends at one of these marks.
    Thought(&'static [&'static str]),
    /// After the only call that is allowed: the rest of the answer is ignored.
    End,
}

impl AnswerParser {
    pub(crate) fn new(form: AnswerForm) -> Self {
        let state = match form.thinking {
            Some(thinking) if form.begins_in_thought => State::Thought(thinking.close),
            _ => State::Text,
        };
        let is_after_mark = form.begins_in_thought;
        Self {
            form,
            text: String::new(),
            state,
            is_after_mark,
            begins_message: false,
            has_content: false,
            has_reasoning: false,
            num_calls: 0,
        }
    }

    /// Reads more of the answer.
    pub(crate) fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>) {
        self.text.push_str(text);
        while self.step(false, events) {}
    }

    /// Reads more of the answer. `marks` are the places of special tokens in the text. Other text contains no marks if
    /// all marks of the format are special tokens.
    pub(crate) fn push_tokens(&mut self, text: &str, marks: &[Range<usize>], events: &mut Vec<AnswerEvent>) {
        let start = events.len();
        if self.form.may_spell_marks() {
            self.push(&spelled::hide(text, marks), events);
            spelled::show(events, start);
        } else {
            self.push(text, events);
        }
    }

    /// Reads the text that was kept as undecided, because the answer has ended.
    pub(crate) fn finish(&mut self, events: &mut Vec<AnswerEvent>) {
        let start = events.len();
        while self.step(true, events) {}
        if self.form.may_spell_marks() {
            spelled::show(events, start);
        }
    }

    /// True if the text so far ends inside a thought.
    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thought(_))
    }

    /// True if the rest of the answer would be ignored, so that the sequence can end.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state, State::End)
    }

    /// Reads the next part. Returns true if there may be more to read.
    fn step(&mut self, is_end: bool, events: &mut Vec<AnswerEvent>) -> bool {
        match &mut self.state {
            State::Text => self.read_text(is_end, events),
            State::Head { opener, .. } => {
                let opener = *opener;
                self.read_head(opener, is_end, events)
            }
            State::Arguments(value) => {
                let end = value.push(&self.text);
                let piece: String = self.text.drain(..end.unwrap_or(self.text.len())).collect();
                if !piece.is_empty() {
                    events.push(AnswerEvent::Arguments(piece));
                }
                self.end_arguments(end.is_some(), is_end, events)
            }
            State::Message { .. } => self.read_message(is_end, events),
            State::Parameters { .. } => self.read_parameter(is_end, events),
            State::Tail => self.read_tail(is_end),
            State::Thought(closers) => {
                let closers = *closers;
                self.read_thought(closers, is_end, events)
            }
            State::End => {
                self.text.clear();
                false
            }
        }
    }

    fn read_text(&mut self, is_end: bool, events: &mut Vec<AnswerEvent>) -> bool {
        let is_first = !self.has_content && self.num_calls == 0;
        let format = self.form.format.filter(|format| !self.form.tools.is_empty() || format.messages.is_some());
        let around_content = self.form.thinking.map_or(&[][..], |thinking| thinking.content);
        let anywhere = format.map_or(&[][..], |format| format.openers).iter().chain(around_content.get(1));
        let first = format.map_or(&[][..], |format| format.first_openers).iter();
        let first = first.chain(self.form.thinking.map(|thinking| &thinking.open)).chain(around_content.first());
        let first = first.filter(|_| is_first);
        let is_blank = |text: &str| text.trim().is_empty();
        let find = |opener: &&'static str| self.text.find(*opener).map(|at| (at, *opener));
        let found_first = first.clone().filter_map(find).filter(|(at, _)| is_blank(&self.text[..*at]));
        if let Some((at, opener)) = anywhere.clone().filter_map(find).chain(found_first).min_by_key(|(at, _)| *at) {
            let content_len = self.text[..at].trim_end().len();
            let mut mark: String = self.text.drain(..at + opener.len()).collect();
            let content: String = mark.drain(..content_len).collect();
            self.say(content, AnswerEvent::Content, events);
            self.state = State::Head { opener, mark };
            return true;
        }
        let openers: Vec<&str> = anywhere.copied().chain(first.copied()).collect();
        let len = if is_end { self.text.len() } else { self.text.len() - num_held_back(&self.text, &openers) };
        let content = self.text.drain(..len).collect();
        self.say(content, AnswerEvent::Content, events);
        false
    }

    fn read_head(&mut self, opener: &'static str, is_end: bool, events: &mut Vec<AnswerEvent>) -> bool {
        if let Some(thinking) = self.form.thinking.filter(|thinking| thinking.open == opener) {
            let mut cursor = Cursor::new(&self.text, is_end);
            let label = cursor.eats(thinking.label);
            let len = cursor.at();
            if label == Err(Miss::Short) {
                return false;
            }
            self.text.drain(..len);
            return self.begin_thought(thinking.close);
        }
        if self.form.thinking.is_some_and(|thinking| thinking.content.contains(&opener)) {
            self.is_after_mark = true;
            self.state = State::Text;
            return true;
        }
        let mut cursor = Cursor::new(&self.text, is_end);
        let head = match self.form.format {
            Some(format) => (format.head)(opener, &mut cursor, &self.form.tools),
            None => Err(Miss::Other),
        };
        let len = cursor.at();
        match head {
            Err(Miss::Short) => return false,
            Err(Miss::Other) => {
                if let State::Head { mark, .. } = std::mem::replace(&mut self.state, State::Text) {
                    self.say(mark, AnswerEvent::Content, events);
                }
                return true;
            }
            Ok(Head::Nothing) => self.state = State::Text,
            Ok(Head::Message) => {
                self.begins_message = true;
                self.state = State::Text;
            }
            Ok(Head::Thought(closers)) => {
                self.text.drain(..len);
                return self.begin_thought(closers);
            }
            Ok(Head::Call { name, arguments }) => {
                self.text.drain(..len);
                return self.begin_call(name, arguments, events);
            }
        }
        self.text.drain(..len);
        self.is_after_mark = true;
        true
    }

    fn begin_thought(&mut self, closers: &'static [&'static str]) -> bool {
        self.is_after_mark = true;
        self.begins_message = true;
        self.state = State::Thought(closers);
        true
    }

    fn begin_call(&mut self, name: String, arguments: Arguments, events: &mut Vec<AnswerEvent>) -> bool {
        let tool = self.form.tools.find(&name).cloned();
        let id = self.form.new_id(&name, self.num_calls);
        events.push(AnswerEvent::CallStarted { id, name });
        self.num_calls += 1;
        self.state = match (arguments, tool) {
            (Arguments::Read(arguments), _) => {
                let arguments = Some(arguments).filter(|arguments| !arguments.is_empty());
                events.extend(arguments.map(AnswerEvent::Arguments).into_iter().chain([AnswerEvent::CallEnded]));
                self.behind_call()
            }
            (Arguments::Message(closers), _) => {
                State::Message { json: self.text.starts_with('{').then(JsonValue::default), closers }
            }
            (Arguments::Parameters(read), Some(tool)) => State::Parameters { read, tool, num_read: 0 },
            (Arguments::Json | Arguments::Parameters(_), _) => State::Arguments(JsonValue::default()),
        };
        true
    }

    fn behind_call(&self) -> State {
        if self.form.has_one_call { State::End } else { State::Tail }
    }

    /// Ends the call if its arguments or the answer have ended. Returns true then.
    fn end_arguments(&mut self, has_ended: bool, is_end: bool, events: &mut Vec<AnswerEvent>) -> bool {
        if has_ended || is_end {
            events.push(AnswerEvent::CallEnded);
            self.state = self.behind_call();
        }
        has_ended || is_end
    }

    /// Reads arguments up to the end of their JSON object, or up to a mark. A mark inside a string of the object is
    /// text, unless it is the end of the answer.
    fn read_message(&mut self, is_end: bool, events: &mut Vec<AnswerEvent>) -> bool {
        let State::Message { json, closers } = &mut self.state else { return false };
        let closer = first_of(&self.text, closers);
        let held_back = if is_end { 0 } else { num_held_back(&self.text, closers) };
        let len = closer.map_or(self.text.len() - held_back, |(at, _)| at);
        let end = json.as_mut().and_then(|json| json.push(&self.text[..len]));
        let mut len = end.unwrap_or(len);
        let mut has_ended = end.is_some();
        if let (false, Some((at, mark_len))) = (has_ended, closer) {
            let (mark, rest) = self.text[at..].split_at(mark_len);
            let is_last = rest.trim().is_empty();
            match json.as_mut().filter(|json| json.is_in_text()) {
                Some(json) if !is_last => {
                    json.push(mark);
                    len += mark_len;
                }
                Some(_) => has_ended = is_end,
                None => has_ended = true,
            }
        }
        if len > 0 {
            events.push(AnswerEvent::Arguments(self.text.drain(..len).collect()));
        }
        self.end_arguments(has_ended, is_end && self.text.is_empty(), events) || len > 0
    }

    fn read_parameter(&mut self, is_end: bool, events: &mut Vec<AnswerEvent>) -> bool {
        let State::Parameters { read, tool, num_read } = &mut self.state else { return false };
        let mut cursor = Cursor::new(&self.text, is_end);
        let parameter = read(&mut cursor, tool);
        let len = cursor.at();
        let separator = if *num_read == 0 { "{" } else { ", " };
        match parameter {
            Err(Miss::Short) => return false,
            // A parameter that is cut off or malformed is left out of the arguments, and their object gets no closing
            // bracket.
            Err(Miss::Other) => return self.end_arguments(true, is_end, events),
            Ok(Some((name, value))) => {
                *num_read += 1;
                let name = serde_json::Value::from(name);
                events.push(AnswerEvent::Arguments(format!("{separator}{name}: {value}")));
            }
            Ok(None) => {
                let end = if *num_read == 0 { "{}" } else { "}" };
                events.push(AnswerEvent::Arguments(end.to_owned()));
                self.end_arguments(true, is_end, events);
            }
        }
        self.text.drain(..len);
        true
    }

    /// Reads what follows a call. The start of a closing mark at the end of the answer is left out: the limit of tokens
    /// has cut the mark, and none of it is content.
    fn read_tail(&mut self, is_end: bool) -> bool {
        let tail_of = |cursor: &mut Cursor<'_>| match self.form.format {
            Some(format) => (format.tail)(cursor),
            None => Err(Miss::Other),
        };
        let mut cursor = Cursor::new(&self.text, is_end);
        let tail = tail_of(&mut cursor);
        let len = cursor.at();
        self.is_after_mark = true;
        match tail {
            Err(Miss::Short) => return false,
            Ok(Tail::Text) | Err(Miss::Other)
                if is_end && tail_of(&mut Cursor::new(&self.text, false)) == Err(Miss::Short) =>
            {
                self.text.clear();
                self.state = State::Text;
            }
            Err(Miss::Other) => self.state = State::Text,
            Ok(Tail::Text) => {
                self.text.drain(..len);
                self.state = State::Text;
            }
            Ok(Tail::Call) => {
                let mark = self.text.drain(..len).collect();
                self.state = State::Head { opener: "", mark };
            }
        }
        true
    }

    fn read_thought(&mut self, closers: &'static [&'static str], is_end: bool, events: &mut Vec<AnswerEvent>) -> bool {
        if let Some((at, closer_len)) = first_of(&self.text, closers) {
            let thought = self.text[..at].trim_end().to_owned();
            let is_opener = |format: &'static Format| format.openers.contains(&&self.text[at..at + closer_len]);
            let is_read_next = self.form.format.is_some_and(is_opener);
            self.text.drain(..if is_read_next { at } else { at + closer_len });
            self.say(thought, AnswerEvent::Reasoning, events);
            self.is_after_mark = true;
            self.state = State::Text;
            return true;
        }
        let held_back =
            if is_end { self.text.len() - self.text.trim_end().len() } else { num_held_back(&self.text, closers) };
        let thought = self.text.drain(..self.text.len() - held_back).collect();
        self.say(thought, AnswerEvent::Reasoning, events);
        false
    }

    fn say(&mut self, mut text: String, event: fn(String) -> AnswerEvent, events: &mut Vec<AnswerEvent>) {
        if self.is_after_mark {
            text.drain(..text.len() - text.trim_start().len());
        }
        if text.is_empty() {
            return;
        }
        self.is_after_mark = false;
        let is_content = matches!(event(String::new()), AnswerEvent::Content(_));
        let has_said = if is_content { &mut self.has_content } else { &mut self.has_reasoning };
        if std::mem::take(&mut self.begins_message) && *has_said {
            text.insert(0, '\n');
        }
        *has_said = true;
        events.push(event(text));
    }
}

/// Returns the position and the length of the first mark in a text.
fn first_of(text: &str, marks: &[&str]) -> Option<(usize, usize)> {
    marks.iter().filter_map(|mark| Some((text.find(mark)?, mark.len()))).min()
}

/// Returns the number of bytes at the end of `text` that may belong to one of the marks: the start of the mark, and
/// white space before it.
fn num_held_back(text: &str, marks: &[&str]) -> usize {
    if marks.is_empty() {
        return 0;
    }
    let begins = |start: &usize| marks.iter().any(|mark| mark.starts_with(&text[*start..]));
    let start = text.char_indices().map(|(at, _)| at).rev().take_while(|at| text.len() - at < 40).filter(begins).min();
    text.len() - text[..start.unwrap_or(text.len())].trim_end().len()
}
