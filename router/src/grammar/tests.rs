//! Random walks through grammars: whatever the masks allow is chosen, and what comes out must be what was asked for.

use std::sync::Arc;

use model_files::ModelFiles;
use serde_json::json;

use super::*;
use crate::text::Tokenizer;

const EOS: u32 = 1;

fn compiler() -> (GrammarCompiler, Arc<Tokenizer>) {
    let tokenizer = Arc::new(Tokenizer::load(&ModelFiles::Demo).unwrap());
    (GrammarCompiler::new(Arc::clone(&tokenizer), crate::testing::VOCAB_SIZE, vec![EOS]), tokenizer)
}

/// Tokens of a mask.
fn allowed(mask: &[u8]) -> Vec<u32> {
    (0..crate::testing::VOCAB_SIZE).filter(|&id| mask[id as usize / 8] >> (id % 8) & 1 == 1).collect()
}

/// A text made of tokens that were allowed. Ends as soon as it may, once it has `min_tokens`.
async fn walk(grammar: Grammar, seed: u64, min_tokens: usize) -> String {
    let (compiler, tokenizer) = compiler();
    let compiled = compiler.compile(&Arc::new(grammar)).await.unwrap();
    let (mut matcher, mut mask) = compiled.begin();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tokens = Vec::new();
    loop {
        let allowed = allowed(&mask);
        if allowed == [EOS] || (allowed.contains(&EOS) && tokens.len() >= min_tokens) {
            return tokenizer.detokenize(&tokens).unwrap();
        }
        let choices: Vec<u32> = allowed.into_iter().filter(|&id| id != EOS).collect();
        tokens.push(choices[random.usize(..choices.len())]);
        assert!(tokens.len() < 2000, "no end: {:?}", tokenizer.detokenize(&tokens));
        mask = matcher.advance(*tokens.last().unwrap()).unwrap();
    }
}

fn properties(count: usize) -> Value {
    let properties: serde_json::Map<_, _> =
        (0..count).map(|number| (format!("p{number}"), json!({"type": "integer", "maximum": 9}))).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

async fn refused(grammar: Grammar) -> String {
    compiler().0.compile(&Arc::new(grammar)).await.unwrap_err().to_string()
}

#[tokio::test]
async fn json_is_valid_under_its_schema() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["a", "b", 7]},
            "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": false
    });
    for seed in 0..20 {
        let text = walk(Grammar::JsonSchema(schema.clone()), seed, 0).await;
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["name", "age", "kind", "tags"], "{text}");
        assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{text}");
        assert!((0..=150).contains(&value["age"].as_i64().unwrap()), "{text}");
        assert!([json!("a"), json!("b"), json!(7)].contains(&value["kind"]), "{text}");
        assert!((1..=3).contains(&value["tags"].as_array().unwrap().len()), "{text}");
    }
}

#[tokio::test]
async fn texts_follow_expressions_choices_and_grammars() {
    for seed in 0..10 {
        let text = walk(Grammar::Regex("[0-9]{3}-[a-c]+é".to_owned()), seed, 6).await;
        let (digits, rest) = text.split_at(3);
        assert!(digits.bytes().all(|byte| byte.is_ascii_digit()) && rest.starts_with('-'), "{text}");
        assert!(rest[1..].trim_end_matches('é').bytes().all(|byte| (b'a'..=b'c').contains(&byte)), "{text}");
        let choices = ["yes", "no \"thanks\"", "пока\n"].map(str::to_owned);
        let text = walk(Grammar::Choice(choices.to_vec()), seed, 0).await;
        assert!(choices.contains(&text), "{text:?}");
        let sum = "start: number (\" + \" number){1,3}\nnumber: /[1-9][0-9]{0,2}/".to_owned();
        let text = walk(Grammar::Lark(sum), seed, 0).await;
        assert!(text.split(" + ").all(|number| (1..1000).contains(&number.parse::<u32>().unwrap())), "{text}");
    }
    let value: Value = serde_json::from_str(&walk(Grammar::JsonObject, 3, 0).await).unwrap();
    assert!(value.is_object());
}

#[tokio::test]
async fn a_wrong_grammar_is_refused_with_a_reason() {
    for (grammar, expected) in [
        (Grammar::Regex("a(".to_owned()), "regex parse error"),
        (Grammar::Lark("start: missing".to_owned()), "missing"),
        (Grammar::Choice(vec![]), "at least one text"),
        (Grammar::Choice(vec![String::new()]), "none may be empty"),
        (Grammar::JsonSchema(json!({"type": "strange"})), "strange"),
        (Grammar::JsonSchema(json!({"type": "object", "minProperties": 3, "if": {}})), "if"),
        (Grammar::JsonSchema(json!({"$ref": "https://example.org/schema.json"})), "example.org"),
        (Grammar::JsonSchema(json!({"type": "integer", "minimum": 3, "maximum": 1})), "minimum"),
        (Grammar::JsonSchema(json!({"enum": ["x".repeat(300 << 10)]})), "at most 262144 are allowed"),
        (Grammar::Regex("x".repeat(300 << 10)), "at most 262144 are allowed"),
        (Grammar::JsonSchema(json!({"$ref": "#"})), "the grammar allows no token here"),
        (Grammar::Lark("start: a\na: b\nb: a".to_owned()), "the grammar allows no token here"),
        (Grammar::JsonSchema(properties(1001)), "it has 1001 properties of an object; at most 1000 are allowed"),
        (Grammar::JsonSchema(json!({"anyOf": vec![json!({}); 501]})), "it has 501 alternatives"),
        (Grammar::JsonSchema(json!({"enum": (0..60_000).collect::<Vec<_>>()})), "at most 50000 are allowed"),
        (
            Grammar::JsonSchema(json!({"allOf": vec![json!({"anyOf": vec![json!({}); 7]}); 3]})),
            "it has 343 combinations",
        ),
    ] {
        let name = format!("{grammar:?}").chars().take(80).collect::<String>();
        let error = refused(grammar).await;
        assert!(error.contains(expected) && !error.contains('\n'), "{name}: {error}");
    }
}

#[tokio::test]
async fn large_grammars_are_followed() {
    let texts: Vec<String> = (0..5000).map(|number| format!("choice number {number}")).collect();
    let text = walk(Grammar::Choice(texts.clone()), 7, 0).await;
    assert!(texts.contains(&text), "{text}");
    let text = walk(Grammar::JsonSchema(properties(300)), 7, 0).await;
    assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
}

#[tokio::test]
async fn objects_have_the_members_that_their_schema_names() {
    let members = |text: &str| -> Vec<String> {
        serde_json::from_str::<Value>(text).unwrap().as_object().unwrap().keys().cloned().collect()
    };
    let bit = json!({"enum": [0, 1]});
    let base = json!({"properties": {"a": bit}, "required": ["a"]});
    for (schema, expected) in [
        (base.clone(), vec!["a"]),
        (json!({"$defs": {"base": base}, "$ref": "#/$defs/base"}), vec!["a"]),
        (
            json!({"$defs": {"base": base}, "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": bit}, "required": ["b"]}]}),
            vec!["a", "b"],
        ),
        (
            json!({"$defs": {"base": base}, "$ref": "#/$defs/base", "properties": {"c": bit}, "required": ["c"]}),
            vec!["c", "a"],
        ),
        (json!({"properties": {"c": bit}, "required": ["c"], "anyOf": [base, base]}), vec!["a", "c"]),
        (
            json!({"type": "object", "properties": {"a": bit}, "required": ["a"], "unevaluatedProperties": false}),
            vec!["a"],
        ),
    ] {
        for seed in 0..5 {
            let text = walk(Grammar::JsonSchema(schema.clone()), seed, 0).await;
            let (mut members, mut expected) = (members(&text), expected.clone());
            members.sort_unstable();
            expected.sort_unstable();
            assert_eq!(members, expected, "{schema}: {text}");
        }
    }
    // Who wants more says so.
    let open = json!({"type": "object", "properties": {"a": bit}, "additionalProperties": {"const": 5}});
    let any = |seed| walk(Grammar::JsonSchema(open.clone()), seed, 20);
    let mut has_others = false;
    for seed in 0..10 {
        has_others |= members(&any(seed).await).iter().any(|name| name != "a");
    }
    assert!(has_others);
}

#[tokio::test]
async fn a_grammar_is_compiled_once() {
    let (compiler, _) = compiler();
    let grammar = Arc::new(Grammar::Regex("[a-z]+".to_owned()));
    let first = compiler.compile(&grammar).await.unwrap();
    assert_eq!(compiler.compile(&grammar).await.unwrap(), first);
    for number in 0..64 {
        compiler.compile(&Arc::new(Grammar::Regex(format!("{number}[a-z]+")))).await.unwrap();
    }
    assert_ne!(compiler.compile(&grammar).await.unwrap(), first, "what is kept is bounded");
}

#[tokio::test]
async fn properties_come_in_the_order_of_each_schema() {
    for (schema, begins) in [
        (
            r#"{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"required":["a","b"],"additionalProperties":false}"#,
            "a",
        ),
        (
            r#"{"type":"object","properties":{"b":{"const":2},"a":{"const":1}},"required":["a","b"],"additionalProperties":false}"#,
            "b",
        ),
    ] {
        let text = walk(Grammar::JsonSchema(serde_json::from_str(schema).unwrap()), 1, 0).await;
        assert!(text.trim_start_matches(['{', ' ', '\n', '"']).starts_with(begins), "{text}");
    }
}

#[tokio::test]
async fn a_token_that_was_not_allowed_ends_the_way() {
    let (compiler, tokenizer) = compiler();
    let (mut matcher, _) = compiler.compile(&Arc::new(Grammar::Regex("a".to_owned()))).await.unwrap().begin();
    let other = tokenizer.tokenize_bare("7").unwrap()[0];
    assert!(matches!(matcher.advance(other), Err(MaskError::Failed(_))));
}

#[tokio::test]
async fn a_model_that_ends_nothing_follows_nothing() {
    let tokenizer = Arc::new(Tokenizer::load(&ModelFiles::Demo).unwrap());
    let compiler = GrammarCompiler::new(tokenizer, crate::testing::VOCAB_SIZE, vec![]);
    assert_eq!(compiler.compile(&Arc::new(Grammar::JsonObject)).await.unwrap_err(), GrammarError::NoEos);
}

#[tokio::test]
async fn a_grammar_within_another_may_name_itself() {
    let answer = |rule: &str| Grammar::Lark(format!("start: {rule}").replace('@', &format!("@{ANSWER}")));
    let within = |rule| answer(rule).within(format!("start: \"(\" @{ANSWER}"));
    let error = refused(answer("\"a\" | \"b\" @")).await;
    assert!(error.contains(ANSWER), "nothing is around it: {error}");
    let text = walk(within("\"a\" | \"b\" @"), 1, 0).await;
    assert!(text.starts_with('(') && text.trim_start_matches(['(', 'b']) == "a", "{text}");
    // It begins with itself.
    let text = walk(within("\"a\" | @ \"b\""), 1, 3).await;
    assert!(text.starts_with("(a") && text.trim_end_matches('b') == "(a", "{text}");
    // What never ends is found out when nothing may follow.
    let (mut matcher, mask) = compiler().0.compile(&Arc::new(within("@ \"b\""))).await.unwrap().begin();
    let [bracket] = allowed(&mask)[..] else { panic!("{:?}", allowed(&mask)) };
    assert!(matcher.advance(bracket).is_err());
}
