//! Adapts messages with tool calls to templates that render one call for each message, such as those of gpt-oss and
//! Llama 3, or that refuse calls after both a thought and content, such as that of gpt-oss.

use serde_json::{Map, Value as Json, json};

use super::adapt::{PROBE, probe};
use super::{ChatTemplate, REASONING_FIELDS};
use crate::text::answer::Format;

/// The messages with calls that a template renders.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallShape {
    /// True if several calls in one message are refused, or all but the first are left out.
    has_one_call: bool,
    /// True if a message with calls may not have both a thought and content.
    refuses_thought_with_content: bool,
}

impl CallShape {
    pub(super) const ALL: Self = Self { has_one_call: false, refuses_thought_with_content: false };

    /// Returns the shape that a template renders, which is found by rendering test messages.
    pub(super) fn of(template: &ChatTemplate, reads_arguments: bool) -> Self {
        let arguments = if reads_arguments { json!({}) } else { json!("{}") };
        let names = [1, 2].map(|number| format!("{PROBE}-{number}"));
        let calls = names.each_ref().map(
            |name| json!({"id": "call00000", "type": "function", "function": {"name": name, "arguments": arguments}}),
        );
        let render = |fields: Json| {
            let mut message = json!({"role": "assistant", "content": ""});
            message.as_object_mut()?.extend(fields.as_object()?.clone());
            probe(template, json!([{"role": "user", "content": "x"}, message]))
        };
        let shows =
            |calls: &[Json], name: &str| render(json!({"tool_calls": calls})).is_some_and(|text| text.contains(name));
        let has_one_call = shows(&calls[..1], &names[0]) && !shows(&calls, &names[1]);
        let one = |thought: &str| render(json!({"content": "x", "thinking": thought, "tool_calls": calls[..1]}));
        Self { has_one_call, refuses_thought_with_content: one("").is_some() && one("x").is_none() }
    }

    /// Converts messages to this shape. A message without calls has no field for them, because templates that only
    /// check whether the field exists would read the first call.
    pub(super) fn adapt(self, messages: &mut Vec<Map<String, Json>>, format: Option<&Format>) {
        for message in messages.iter_mut() {
            if message.get("tool_calls").and_then(Json::as_array).is_some_and(Vec::is_empty) {
                message.remove("tool_calls");
            }
            if self.refuses_thought_with_content && message.contains_key("tool_calls") {
                move_content(message, format.map_or("\n", Format::between_thought_and_content));
            }
        }
        if self.has_one_call {
            *messages = split_calls(std::mem::take(messages));
        }
    }
}

/// Appends the content of a message to its thought, if it has both.
fn move_content(message: &mut Map<String, Json>, separator: &str) {
    let text = |name: &str| message.get(name).and_then(Json::as_str).filter(|text| !text.is_empty());
    let thought = REASONING_FIELDS.into_iter().find_map(text);
    let Some((thought, content)) = thought.zip(text("content")) else { return };
    let thought = [thought, separator, content].concat();
    REASONING_FIELDS.iter().chain(&["content"]).for_each(|name| drop(message.remove(*name)));
    message.insert(REASONING_FIELDS[0].to_owned(), Json::from(thought));
}

/// Makes a message of each call, followed by the result of the call.
fn split_calls(messages: Vec<Map<String, Json>>) -> Vec<Map<String, Json>> {
    let mut split = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut).filter(|calls| calls.len() > 1);
        let Some(calls) = calls.map(std::mem::take) else {
            split.push(message);
            continue;
        };
        let is_result = |message: &Map<String, Json>| message.get("role").is_some_and(|role| role == "tool");
        let mut results: Vec<_> = std::iter::from_fn(|| messages.next_if(is_result)).collect();
        for call in calls {
            let result = position_of_result(&call, &results).map(|at| results.remove(at));
            message.insert("tool_calls".to_owned(), json!([call]));
            split.push(std::mem::replace(&mut message, empty_answer()));
            split.extend(result);
        }
        split.extend(results);
    }
    split
}

/// Returns the position of a call's result: the one with its id, or else the first one if that has no id.
fn position_of_result(call: &Json, results: &[Map<String, Json>]) -> Option<usize> {
    let id = |result: &Map<String, Json>| result.get("tool_call_id").filter(|id| id.is_string()).cloned();
    let own = call.get("id").and_then(|own| results.iter().position(|result| id(result).as_ref() == Some(own)));
    own.or_else(|| results.first().is_some_and(|result| id(result).is_none()).then_some(0))
}

fn empty_answer() -> Map<String, Json> {
    Map::from_iter([("role", "assistant"), ("content", "")].map(|(name, text)| (name.to_owned(), Json::from(text))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::chat_template::{ChatInputs, SpecialTokens};

    /// A template that treats calls as that of gpt-oss does.
    const GPT_OSS: &str = "{% for t in tools or [] %}// {{ t.function.description + '\n' }}type {{ t.function.name }}\n{% endfor %}\
        {% for m in messages %}{% if m.role == 'assistant' and 'tool_calls' in m %}{% set call = m.tool_calls[0].function %}\
        {% if m.content and m.thinking %}{{ raise_exception('both') }}{% elif m.content or m.thinking %}\
        <|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{% endif %}\
        <|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments | tojson }}<|call|>\
        {% else %}<|start|>{{ m.role }}<|message|>{{ m.content + '<|end|>' }}{% endif %}{% endfor %}";

    fn render(source: &str, messages: Json, tools: Option<Vec<Json>>) -> String {
        let template = ChatTemplate::compile(source, SpecialTokens::new()).unwrap();
        let messages = serde_json::from_value(messages).unwrap();
        template.render_adapted(ChatInputs { messages, tools, ..ChatInputs::default() }).unwrap().text
    }

    fn call(id: &str, name: &str) -> Json {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{\"a\": 1}"}})
    }

    #[test]
    fn each_call_has_a_message_and_its_result() {
        let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let answer = json!({"role": "assistant", "reasoning": "Hm", "content": null, "tool_calls": [call("1", "f"), call("2", "g")]});
        let text = render(GPT_OSS, json!([answer, result("2", "R2"), result("1", "R1")]), None);
        let written = |name: &str, result: &str| {
            format!(
                "<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{{\"a\": 1}}<|call|><|start|>tool<|message|>{result}<|end|>"
            )
        };
        let thought = "<|start|>assistant<|channel|>analysis<|message|>Hm<|end|>";
        assert_eq!(text, format!("{thought}{}{}", written("f", "R1"), written("g", "R2")));
        let mut unnamed = json!([answer, {"role": "tool", "content": "R1"}, {"role": "tool", "content": "R2"}]);
        assert_eq!(render(GPT_OSS, unnamed.clone(), None), text);
        unnamed[0]["tool_calls"] = json!([]);
        unnamed[0]["content"] = json!("x");
        assert!(render(GPT_OSS, unnamed, None).starts_with("<|start|>assistant<|message|>x<|end|>"));
    }

    #[test]
    fn content_before_a_call_follows_the_thought_as_the_model_wrote_it() {
        for name in REASONING_FIELDS {
            let answer = json!({"role": "assistant", name: "Hm", "content": [{"type": "text", "text": "Let me look."}], "tool_calls": [call("1", "f")]});
            let text = render(GPT_OSS, json!([answer]), None);
            let expected = "<|start|>assistant<|channel|>analysis<|message|>Hm<|end|>\
                <|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>\
                <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>";
            assert_eq!(text, expected, "{name}");
        }
    }

    #[test]
    fn tools_may_lack_a_description() {
        for description in [json!({}), json!({"description": null})] {
            let mut function = json!({"name": "f"});
            function.as_object_mut().unwrap().extend(description.as_object().unwrap().clone());
            let tool = json!({"type": "function", "function": function});
            let text = render(GPT_OSS, json!([{"role": "user", "content": "x"}]), Some(vec![tool]));
            assert_eq!(text, "// \ntype f\n<|start|>user<|message|>x<|end|>");
        }
    }
}
