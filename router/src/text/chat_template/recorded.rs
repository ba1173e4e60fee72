//! Renders well-known templates and compares each text with that of transformers: the two must be equal byte for byte,
//! except for the known differences listed here.
//!
//! The templates are not ours to publish. `integration-tests/chat_templates/run.sh` takes them out of published
//! packages, records the output of transformers, and names the folder in `HILO_CHAT_TEMPLATES`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;
use crate::text::answer::{Answer, AnswerParser};

/// Conversations in which a template adds to a text marked `safe`. Python escapes the added text for HTML; this crate
/// does not.
const ESCAPED: [&str; 11] = [
    "tools",
    "a tiny number",
    "tools and system",
    "a call and its result",
    "a call without content",
    "a call with arguments as text",
    "two calls",
    "thoughts and calls",
    "thoughts of an earlier turn",
    "developer",
    "a date",
];
/// Conversations in which a template joins a number to a text with `~`: Python prints 1e-05, and this crate prints
/// 0.00001.
const EXPONENT: [&str; 1] = ["a tiny number"];
/// Known differences: templates and their conversations.
const DIFFERENT: [(&str, &[&str]); 4] = [
    ("llama.cpp meetkai-functionary-medium-v3.1", &ESCAPED),
    ("llama.cpp meetkai-functionary-medium-v3.2", &EXPONENT),
    ("llama.cpp GigaChat3-10B-A1.8B", &EXPONENT),
    ("llama.cpp GigaChat3.1-10B-A1.8B", &EXPONENT),
];

/// Templates whose calls are read back, each with the mark after a message that calls.
const READ_BACK: [(&str, &str); 7] = [
    ("axolotl llama4", "<|eot|>"),
    ("llama.cpp Qwen-Qwen3-0.6B", "<|im_end|>"),
    ("llama.cpp ibm-granite-granite-4.0", "<|end_of_text|>"),
    ("llama.cpp meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>"),
    ("llama.cpp mistralai-Mistral-Nemo-Instruct-2407", "</s>"),
    ("llama.cpp openai-gpt-oss-120b", "<|call|>"),
    ("llama.cpp upstage-Solar-Open-100B", "<|calls|>"),
];

/// One template, with transformers' output for each conversation.
#[derive(Debug, Deserialize)]
struct Recording {
    template: String,
    special_tokens: SpecialTokens,
    cases: Vec<Case>,
}

#[derive(Debug, Clone, Deserialize)]
struct Case {
    name: String,
    messages: Vec<Map<String, Json>>,
    tools: Option<Vec<Json>>,
    documents: Option<Vec<Json>>,
    ending: String,
    variables: Map<String, Json>,
    expected: Expected,
}

/// The outcome of rendering a conversation with transformers.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Text(String),
    /// The message of `raise_exception`.
    Raised(String),
    /// The message of a Python error that the template caused.
    Failed(String),
}

/// The time at which all recordings were made.
fn now() -> DateTime {
    jiff::civil::date(2026, 3, 7).at(9, 5, 2, 0)
}

impl Case {
    fn inputs(&self) -> ChatInputs {
        let Self { messages, tools, documents, ending, variables, .. } = self.clone();
        let ending = match ending.as_str() {
            "generation_prompt" => ChatEnding::GenerationPrompt,
            "final_message" => ChatEnding::FinalMessage,
            _ => ChatEnding::Conversation,
        };
        ChatInputs { messages, tools, documents, ending, variables, now: now() }
    }
}

/// Returns a description of the difference, if there is one.
fn difference(template: &ChatTemplate, case: Case) -> Option<String> {
    let inputs = case.inputs();
    let Case { name, expected, .. } = case;
    match (template.render(&inputs), expected) {
        (Ok(text), Expected::Text(expected)) if text == expected => None,
        (Err(ChatTemplateError::Raised(sentence)), Expected::Raised(expected)) if sentence == expected => None,
        // Where Python fails, this crate may succeed, or fail as well. An error of `raise_exception` or of a limit is a
        // difference.
        (Ok(_) | Err(ChatTemplateError::Failed(_) | ChatTemplateError::NotContinued), Expected::Failed(_)) => None,
        (Err(ChatTemplateError::NothingToContinue), Expected::Failed(_)) => None,
        (Ok(ours), Expected::Text(theirs)) => {
            let same = ours.bytes().zip(theirs.bytes()).take_while(|(ours, theirs)| ours == theirs).count();
            let around = |text: &str| {
                let [start, end] = [same.saturating_sub(60), same + 60].map(|place| text.floor_char_boundary(place));
                text[start..end].to_owned()
            };
            Some(format!("{name}, at byte {same}\n  ours   {:?}\n  theirs {:?}", around(&ours), around(&theirs)))
        }
        (ours, Expected::Failed(error)) => Some(format!("{name}\n  ours   {ours:?}\n  theirs fails: {error}")),
        (ours, theirs) => Some(format!("{name}\n  ours   {ours:?}\n  theirs {theirs:?}")),
    }
}

fn read(path: &Path) -> Recording {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the folder of recordings. If there is none, prints that and returns `None`.
fn recordings() -> Option<PathBuf> {
    let directory = std::env::var_os("HILO_CHAT_TEMPLATES").map(PathBuf::from);
    if directory.is_none() {
        let reason =
            "no folder in HILO_CHAT_TEMPLATES (integration-tests/chat_templates/run.sh records chat templates)";
        test_support::skipped_unless_required("HILO_REQUIRE_CHAT_TEMPLATES", reason);
    }
    directory
}

fn compare(path: &Path) -> (usize, Vec<String>) {
    let recording = read(path);
    let name = path.file_stem().unwrap_or_default().display().to_string();
    let template = match ChatTemplate::compile(&recording.template, recording.special_tokens) {
        Ok(template) => template,
        Err(error) => return (0, vec![format!("{name}: {error}")]),
    };
    let different = DIFFERENT.iter().find(|(template, _)| *template == name).map_or(&[][..], |(_, cases)| *cases);
    let num_cases = recording.cases.len();
    let differences = recording.cases.into_iter().filter_map(|case| {
        let is_different = different.contains(&case.name.as_str());
        let same = format!("{}: no longer different", case.name);
        match difference(&template, case) {
            Some(_) if is_different => None,
            None if is_different => Some(same),
            difference => difference,
        }
    });
    (num_cases, differences.map(|difference| format!("{name}: {difference}")).collect())
}

#[test]
fn recorded_conversations_are_rendered_as_by_transformers() {
    let Some(directory) = recordings() else { return };
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    files.sort();
    let results: Vec<_> = files.iter().map(|path| compare(path)).collect();
    let num_cases: usize = results.iter().map(|(num_cases, _)| num_cases).sum();
    let differences: Vec<String> = results.into_iter().flat_map(|(_, differences)| differences).collect();
    println!("{} templates, {num_cases} conversations, {} unexpected differences", files.len(), differences.len());
    assert!(files.len() >= 15 && differences.is_empty(), "{}", differences.join("\n"));
}

/// The text that transformers renders for a message with a call is read as that call.
#[test]
fn recorded_calls_are_read_back() {
    let Some(directory) = recordings() else { return };
    for (name, end) in READ_BACK {
        let Recording { template, special_tokens, cases } = read(&directory.join(format!("{name}.json")));
        let template = ChatTemplate::compile(&template, special_tokens).unwrap();
        let case = |name: &str| cases.iter().find(|case| case.name == name).unwrap();
        let text = |case: &Case| match &case.expected {
            Expected::Text(text) => text.clone(),
            other => panic!("{name}: {other:?}"),
        };
        let (asked, called) = (case("tools"), case("a call and its result"));
        let whole = text(called);
        let rest = whole.strip_prefix(text(asked).as_str()).unwrap();
        let answer = rest.split(end).next().unwrap();
        let mut parser = AnswerParser::new(template.render_adapted(asked.inputs()).unwrap().answer_form);
        let (mut events, mut read) = (Vec::new(), Answer::default());
        parser.push(answer, &mut events);
        parser.finish(&mut events);
        events.iter().for_each(|event| read.push(event));
        let expected = &called.messages[1]["tool_calls"][0]["function"];
        let calls: Vec<(Json, Json)> = read
            .calls
            .into_iter()
            .map(|call| (call.name.into(), serde_json::from_str(&call.arguments).unwrap()))
            .collect();
        let expected = vec![(expected["name"].clone(), expected["arguments"].clone())];
        assert_eq!((read.content.as_str(), calls), ("", expected), "{name}: {answer}");
    }
}
