//! Compares what is read in gpt-oss's answers with recordings of OpenAI's own parser (`harmony.json`), and reads random
//! texts of the format.

use std::sync::Arc;

use model_files::ModelFiles;
use proptest::prelude::*;
use serde::Deserialize;

use super::form::FORMATS;
use super::tests::{form, read, tools};
use super::*;
use crate::grammar::{Grammar, GrammarCompiler, after_thought, calls, calls_or};
use crate::testing::{VOCAB_SIZE, harmony_files};
use crate::text::Tokenizer;

/// The marks of the format, which never become content.
const MARKS: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"];

const EOS: u32 = 1;

#[derive(Debug, Deserialize)]
struct Recording {
    answers: Vec<Recorded>,
}

/// One answer, with the messages in it.
#[derive(Debug, Deserialize)]
struct Recorded {
    name: String,
    tokens: Vec<String>,
    messages: Vec<Message>,
    /// For each number of tokens: the number of messages, and the length of the last message's text.
    cuts: Vec<(usize, usize)>,
}

#[derive(Debug, Clone, Deserialize)]
struct Message {
    channel: Option<String>,
    recipient: Option<String>,
    text: String,
}

/// An answer without ids. White space at its ends does not count.
#[derive(Debug, PartialEq)]
struct Content {
    reasoning: String,
    content: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
}

/// Returns what the messages mean. White space around their texts belongs to the marks.
fn meaning(messages: &[Message]) -> Content {
    let (mut reasoning, mut content, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for Message { channel, recipient, text } in messages {
        match recipient {
            Some(recipient) if let Some(name) = recipient.strip_prefix("functions.") => {
                calls.push((name.to_owned(), text.clone()));
            }
            None if channel.as_deref() != Some("analysis") => content.push(text.trim()),
            _ => reasoning.push(text.trim()),
        }
    }
    let join = |texts: Vec<&str>| texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
    Content { reasoning: join(reasoning), content: join(content), calls }
}

fn collect(events: &[AnswerEvent]) -> Content {
    let mut answer = Answer::default();
    events.iter().for_each(|event| answer.push(event));
    let calls = answer.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
    Content { reasoning: answer.reasoning.trim().to_owned(), content: answer.content.trim().to_owned(), calls }
}

fn recorded() -> Vec<Recorded> {
    serde_json::from_str::<Recording>(include_str!("harmony.json")).unwrap().answers
}

#[test]
fn answers_are_read_as_by_openai() {
    let form = form("harmony", "", "");
    for Recorded { name, tokens, messages, .. } in recorded() {
        let text = tokens.concat();
        let whole = read(&form, [text.as_str()]);
        assert_eq!(collect(&whole), meaning(&messages), "{name}");
        assert_eq!(read(&form, tokens.iter().map(String::as_str)), whole, "{name}, in tokens");
        for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
            assert_eq!(read(&form, [&text[..at], &text[at..]]), whole, "{name}, cut at {at}");
        }
    }
}

#[test]
fn answers_that_are_cut_off_are_read_as_by_openai() {
    let form = form("harmony", "", "");
    for Recorded { name, tokens, mut messages, cuts } in recorded() {
        assert_eq!(tokens.len(), cuts.len());
        let texts: Vec<String> = messages.iter().map(|message| message.text.clone()).collect();
        for (index, (num_messages, len)) in cuts.into_iter().enumerate() {
            let tokens = &tokens[..=index];
            // The first tokens of a recipient are text until they are followed by the name of a function or a channel.
            if tokens[0] == " to" && num_messages == 0 && !tokens.iter().any(|token| token == "<|channel|>") {
                continue;
            }
            if let Some(last) = num_messages.checked_sub(1) {
                messages[last].text = texts[last][..len].to_owned();
            }
            let text = tokens.concat();
            let whole = read(&form, [text.as_str()]);
            assert_eq!(collect(&whole), meaning(&messages[..num_messages]), "{name}: {text:?}");
            assert_eq!(read(&form, tokens.iter().map(String::as_str)), whole, "{name}: {tokens:?}");
        }
    }
}

#[tokio::test]
async fn a_grammar_forces_gpt_oss_to_write_messages() {
    let folder = harmony_files();
    let files = ModelFiles::Directory(folder.path().to_owned());
    let tokenizer = Arc::new(Tokenizer::load(&files).unwrap());
    let mut form = form("harmony", "", "").with_special_marks(|mark| tokenizer.special_id(mark));
    assert_eq!(form.special_marks.iter().filter(|(mark, _)| MARKS.contains(mark)).count(), MARKS.len());
    let compiler = GrammarCompiler::new(Arc::clone(&tokenizer), VOCAB_SIZE, vec![EOS], 256 << 20);
    let syntax = form.make_enforceable();
    let answer = Grammar::Regex("[0-9]{2}".to_owned());
    let [thought, header] =
        ["<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant", "<|channel|>final<|message|>"];
    let call = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}";
    let calls_only = Arc::new(calls(&form, syntax, None).unwrap());
    let either = Arc::new(calls_or(&form, syntax, answer.clone()).unwrap());
    let answer_only = Arc::new(after_thought(&form, answer));
    for (grammar, text, is_allowed) in [
        (&calls_only, call.to_owned(), true),
        (&calls_only, format!("{thought}{call}<|end|><|start|>assistant{call}"), true),
        (&calls_only, format!("{header}12"), false),
        (&either, format!("{thought}{header}12"), true),
        (&either, format!("{thought}{call}"), true),
        (&either, "12".to_owned(), false),
        (&answer_only, format!("{thought}{header}12"), true),
        (&answer_only, format!("{header}12"), true),
        (&answer_only, format!("{thought}12"), false),
    ] {
        let (mut matcher, mut mask) = compiler.compile(grammar).await.unwrap().begin().unwrap();
        let is_free = |mask: &[u8], id: u32| mask[id as usize / 8] >> (id % 8) & 1 == 1;
        let tokens = tokenizer.tokenize_bare(&text).unwrap();
        let follows = tokens.into_iter().all(|token| {
            let follows = is_free(&mask, token);
            mask = if follows { matcher.advance(token).unwrap() } else { Vec::new() };
            follows
        });
        assert_eq!(follows && is_free(&mask, EOS), is_allowed, "{text}");
    }
}

/// Returns the events of tokens of which those that are marks are special.
fn read_tokens(form: &AnswerForm, tokens: &[&str]) -> Content {
    let mut parser = AnswerParser::new(form.clone());
    let mut events = Vec::new();
    for token in tokens {
        let mark = 0..token.len();
        let marks = if MARKS.contains(token) { std::slice::from_ref(&mark) } else { &[] };
        parser.push_tokens(token, marks, &mut events);
    }
    parser.finish(&mut events);
    collect(&events)
}

#[test]
fn marks_that_are_no_special_tokens_are_text() {
    let form = form("harmony", "", "")
        .with_special_marks(|mark| MARKS.iter().position(|known| *known == mark).map(|at| at as u32));
    let spelled = ["<", "|", "end", "|><|start|>assistant<|chan", "nel|>final<|message|>x <b>", "<"];
    let analysis = ["<|channel|>", "analysis", "<|message|>"];
    let last = ["<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"];
    let tokens = [&analysis[..], &spelled, &last, &spelled, &["<|return|>"]].concat();
    let text = spelled.concat();
    let expected = Content { reasoning: text.clone(), content: text.clone(), calls: Vec::new() };
    assert_eq!(read_tokens(&form, &tokens), expected);
    let header = [
        " to",
        "=functions.get",
        "<|channel|>",
        "commentary",
        " ",
        "<|constrain|>",
        "json",
        "<|message|>",
        "{\"city\": \"",
    ];
    let tokens = [&header[..], &spelled, &["\"}", "<|call|>"]].concat();
    let arguments = format!("{{\"city\": \"{text}\"}}");
    assert_eq!(read_tokens(&form, &tokens).calls, [("get".to_owned(), arguments)]);
    for Recorded { name, tokens, messages, .. } in recorded() {
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        assert_eq!(read_tokens(&form, &tokens), meaning(&messages), "{name}");
    }
}

/// Random mixtures of harmony's marks and texts.
fn texts() -> impl Strategy<Value = Vec<&'static str>> {
    let words = [
        " ",
        "\n",
        "a",
        "é",
        "assistant",
        "analysis",
        "commentary",
        "final",
        "user",
        "json",
        "code",
        "python",
        "to=",
        " to=functions.get",
        "to=functions.get_time",
        " to=functions.none",
        " to=browser.open",
        "functions.get",
        "{\"city\": \"a\"}",
        "{}",
        "{",
        "}",
        "\"",
        "\\",
        "[1]",
        "<",
        "<|",
        "|>",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|constrain|>json<|message|>",
    ];
    prop::collection::vec(prop::sample::select([&words[..], &MARKS].concat()), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_mark_becomes_content(parts in texts(), has_tools in any::<bool>()) {
        let format = FORMATS.iter().find(|format| format.name == "harmony");
        let tools = if has_tools { Tools::new(&tools()) } else { Tools::default() };
        let form = AnswerForm::new((format, None), "", tools);
        let text = parts.concat();
        let whole = read(&form, [text.as_str()]);
        let content = collect(&whole).content;
        prop_assert!(!MARKS.iter().any(|mark| content.contains(mark)), "{:?}: {:?}", text, content);
        prop_assert_eq!(&read(&form, parts.iter().copied()), &whole, "{:?}", parts);
        for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
            prop_assert_eq!(&read(&form, [&text[..at], &text[at..]]), &whole, "{:?} cut at {}", text, at);
        }
    }
}
