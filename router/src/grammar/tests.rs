//! Random walks through grammars: they choose any token that the masks allow, and the text must satisfy the grammar.

use std::sync::Arc;

use model_files::ModelFiles;
use serde_json::{Value, json};

use super::constraint::ANSWER;
use super::*;
use crate::text::Tokenizer;

const EOS: u32 = 1;
const MEMORY_BYTES: usize = 256 << 20;

pub(super) fn compiler() -> (GrammarCompiler, Arc<Tokenizer>) {
    let tokenizer = Arc::new(Tokenizer::load(&ModelFiles::Demo).unwrap());
    (GrammarCompiler::new(Arc::clone(&tokenizer), crate::testing::VOCAB_SIZE, vec![EOS], MEMORY_BYTES), tokenizer)
}

/// Returns the tokens that a mask allows.
fn allowed(mask: &[u8]) -> Vec<u32> {
    (0..crate::testing::VOCAB_SIZE).filter(|&id| mask[id as usize / 8] >> (id % 8) & 1 == 1).collect()
}

/// Returns a text of random allowed tokens. Once it has `min_tokens` tokens, the text ends as soon as the grammar
/// allows.
async fn walk(grammar: Grammar, seed: u64, min_tokens: usize) -> String {
    walk_within(grammar, seed, min_tokens, 2000).await
}

async fn walk_within(grammar: Grammar, seed: u64, min_tokens: usize, max_tokens: usize) -> String {
    let (compiler, tokenizer) = compiler();
    let compiled = compiler.compile(&Arc::new(grammar)).await.unwrap();
    let (mut matcher, mut mask) = compiled.begin().unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tokens = Vec::new();
    loop {
        let allowed = allowed(&mask);
        if allowed == [EOS] || (allowed.contains(&EOS) && tokens.len() >= min_tokens) {
            return tokenizer.detokenize(&tokens).unwrap();
        }
        let choices: Vec<u32> = allowed.into_iter().filter(|&id| id != EOS).collect();
        tokens.push(choices[random.usize(..choices.len())]);
        assert!(tokens.len() < max_tokens, "no end: {:?}", tokenizer.detokenize(&tokens));
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
        (Grammar::JsonSchema(json!({"$ref": "#"})), "the grammar allows no next token"),
        (Grammar::Lark("start: a\na: b\nb: a".to_owned()), "the grammar allows no next token"),
        (Grammar::JsonSchema(properties(1001)), "it has 1001 properties of an object; at most 1000 are allowed"),
        (
            Grammar::JsonSchema(json!({"type": "integer", "multipleOf": 999_983})),
            "its `multipleOf` 999983 is too large",
        ),
        (
            Grammar::JsonSchema(json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 9.91}]})),
            "its `multipleOf` 9.91 is too large",
        ),
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
    // Two objects with as many properties as are allowed: one where all but the last are optional, one where all are
    // required.
    let (mut optional, mut required) = (properties(1000), properties(1000));
    optional["required"] = json!(["p999"]);
    required["required"] = required["properties"].as_object().unwrap().keys().cloned().collect();
    let members = |text: &str| serde_json::from_str::<serde_json::Map<String, Value>>(text).unwrap();
    let text = walk(Grammar::JsonSchema(optional), 7, 0).await;
    assert!(members(&text).contains_key("p999"), "{text}");
    assert_eq!(members(&walk_within(Grammar::JsonSchema(required), 7, 0, 20_000).await).len(), 1000);
}

/// Returns a chain of terminals. `link` makes the definition of each from the name of the next.
fn chain(links: usize, link: impl Fn(String) -> String) -> Grammar {
    let lines = (0..links).map(|index| format!("T{index}: {}\n", link(format!("T{}", index + 1))));
    Grammar::Lark(format!("start: T0\n{}T{links}: \"a\"\n", lines.collect::<String>()))
}

/// Returns grammars that try to take all time, memory or stack.
fn hostile() -> Vec<(&'static str, Grammar)> {
    let regex = |text: &str| Grammar::Regex(text.to_owned());
    let lark = |text: &str| Grammar::Lark(text.to_owned());
    let list = |count: usize, between: &str, item: &dyn Fn(usize) -> String| {
        (0..count).map(item).collect::<Vec<_>>().join(between)
    };
    let rules = |count: usize, rule: &dyn Fn(usize) -> String| {
        Grammar::Lark(format!("start: r0\n{}\nr{count}: \"a\"", list(count, "\n", rule)))
    };
    let intersection =
        |item: &dyn Fn(usize) -> String, count| Grammar::Lark(format!("start: A\nA: {}", list(count, " & ", item)));
    let patterns =
        |count: usize| (0..count).map(|n| json!({"pattern": format!("^(.*a.{{{n}}})*$")})).collect::<Vec<_>>();
    let wide = |count: usize, of_each: usize| {
        let properties = |n: usize| (0..of_each).map(move |k| (format!("p{n}_{k}"), json!({"type": "integer"})));
        let branch = |n: usize| json!({"properties": properties(n).collect::<serde_json::Map<_, _>>()});
        json!({"anyOf": (0..count).map(branch).collect::<Vec<_>>()})
    };
    vec![
        ("nested repetitions in a chain", chain(2000, |next| format!("{}{next}{}", "(".repeat(20), ")+".repeat(20)))),
        ("a chain of repetitions", chain(4000, |next| format!("({next} \"b\")*"))),
        ("terminals that double", chain(3000, |next| format!("{next} {next}"))),
        ("terminals that double with an option", chain(2000, |next| format!("{next} \"b\" {next}?"))),
        ("terminals that double with alternatives", chain(2000, |next| format!("{next} | \"x\" {next}"))),
        ("rules that double", rules(5000, &|n| format!("r{n}: r{} r{0} |", n + 1))),
        ("brackets", Grammar::Lark(format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000)))),
        ("huge counts", lark("start: a{0,2000000000}\na: B{1000000}\nB: (\"x\"|\"yz\"){0,2000000000}")),
        ("counts within counts", regex("(.{0,500}a.{0,500}b){1,50}")),
        ("counts of classes", regex(r"(\p{L}{0,1000}\p{N}{0,1000}){1,1000}")),
        ("options one after the other", Grammar::Regex(list(100_000, "", &|n| format!("{}?", n % 10)))),
        ("repetitions one after the other", Grammar::Regex(list(100_000, "", &|n| format!("{}*", n % 10)))),
        ("groups of repetitions", Grammar::Regex("(a|b|c|d|e|f)*".repeat(15_000))),
        ("many alternatives of anything", Grammar::Regex(list(20_000, "|", &|n| format!(".*{n}x")))),
        ("intersections", intersection(&|n| format!("/.*{}.{{{n}}}/", n % 10), 20)),
        ("an intersection of which nothing is left", intersection(&|n| format!("/(.*{n}.{{{}}})/", 299 + n), 3)),
        (
            "an intersection inside an alternative",
            lark("start: A\nA: \"x\" | \"y\" (/(.*a.{300})/ & /(.*b.{299})/ & /(.*c.{301})/)"),
        ),
        ("complements", intersection(&|n| format!("~/(.{{{}}})*/", 2 * n + 3), 12)),
        ("ambiguity", lark("start: e\ne: e e | \"a\" | \"a\" e | e \"a\" | ")),
        ("options of a rule", Grammar::Lark(format!("start: e\ne: {} \"z\"", "e? ".repeat(200)))),
        ("counts of rules", lark("start: e{0,50}\ne: f{0,50}\nf: g{0,50}\ng: \"z\"?")),
        ("many terminals", Grammar::Lark(format!("start: {}", list(25_000, "|", &|n| format!("\"{n:05}\""))))),
        ("many terminals one after the other", Grammar::Lark(format!("start: {}", "/.*/ ".repeat(20_000)))),
        ("many optional terminals", Grammar::Lark(format!("start: {}", list(9000, " ", &|n| format!("\"{n}\"?"))))),
        ("more symbols than there are numbers", Grammar::Lark(format!("start: {}\nA: /a*/", "A ".repeat(40_000)))),
        (
            "parts of a long text",
            Grammar::Lark(format!("start: %regex {{\"substring_chars\": \"{}\"}}", "ab".repeat(60_000))),
        ),
        ("patterns that all hold", Grammar::JsonSchema(json!({"type": "string", "allOf": patterns(20)}))),
        ("patterns of members", {
            let patterns: serde_json::Map<_, _> = (0..101).map(|n| (format!("^x{n}_.*a.{{50}}$"), json!({}))).collect();
            Grammar::JsonSchema(json!({"type": "object", "patternProperties": patterns}))
        }),
        ("alternatives of many members", Grammar::JsonSchema(wide(400, 40))),
        ("a large list of values", Grammar::JsonSchema(json!({"enum": (0..40_000).collect::<Vec<_>>()}))),
        (
            "remainders",
            Grammar::JsonSchema(json!({"type": "number", "multipleOf": 9_999_991, "minimum": -1e15, "maximum": 1e15})),
        ),
        (
            "a schema that is itself",
            Grammar::JsonSchema(json!({"allOf": [{"$ref": "#"}, {"properties": {"a": {"$ref": "#"}}}]})),
        ),
    ]
}

#[tokio::test]
async fn hostile_grammars_end_with_an_error_or_work() {
    let (compiler, _) = compiler();
    for (name, grammar) in hostile() {
        let grammar = Arc::new(grammar);
        let compiled = compiler.compile(&grammar).await;
        match &compiled {
            Ok(compiled) => {
                let (mut matcher, mut mask) = compiled.begin().unwrap();
                for step in 0..50 {
                    let allowed = allowed(&mask);
                    match matcher.advance(allowed[step % allowed.len()]) {
                        Ok(next) => mask = next,
                        // Only this row fails, and its message is not the text of a panic.
                        Err(error) => {
                            assert!(!error.to_string().contains("panic"), "{name}: {error}");
                            break;
                        }
                    }
                    assert!(matcher.num_bytes() <= 32 << 20, "{name}: {} bytes", matcher.num_bytes());
                }
            }
            Err(GrammarError::Invalid(message)) => {
                let has_reason = !message.contains("panic") && !message.contains("assertion");
                assert!(has_reason && message.len() < 600, "{name}: {message}");
            }
            Err(error) => panic!("{name}: {error}"),
        }
        // The second request gets the outcome that was kept.
        assert_eq!(compiler.compile(&grammar).await.is_ok(), compiled.is_ok(), "{name}");
        // Other grammars can still be compiled.
        let other = Arc::new(Grammar::Choice(vec![name.to_owned()]));
        assert!(compiler.compile(&other).await.is_ok(), "after {name}");
    }
}

#[tokio::test]
async fn a_grammar_that_nobody_waits_for_is_stopped_and_forgotten() {
    let (compiler, _) = compiler();
    let grammar = Arc::new(Grammar::Regex("[a-z]+".to_owned()));
    for polls in 1..4 {
        let mut compiling = std::pin::pin!(compiler.compile(&grammar));
        for _ in 0..polls {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(compiling.as_mut().poll(&mut context).is_pending());
        }
    }
    assert!(compiler.compile(&grammar).await.is_ok());
}

#[tokio::test]
async fn a_refused_grammar_is_remembered() {
    let (compiler, _) = compiler();
    let grammar = Arc::new(Grammar::Regex("a(".to_owned()));
    let error = compiler.compile(&grammar).await.unwrap_err();
    for number in 0..64 {
        assert!(compiler.compile(&Arc::new(Grammar::Regex(format!("{number}(")))).await.is_err());
    }
    assert_eq!(compiler.compile(&grammar).await.unwrap_err(), error);
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
    // A schema that allows other members gets them.
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
    assert_ne!(compiler.compile(&grammar).await.unwrap(), first, "the number of kept grammars is limited");
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
    let (mut matcher, _) = compiler.compile(&Arc::new(Grammar::Regex("a".to_owned()))).await.unwrap().begin().unwrap();
    let other = tokenizer.tokenize_bare("7").unwrap()[0];
    assert!(matches!(matcher.advance(other), Err(MaskError::Failed(_))));
}

#[tokio::test]
async fn a_model_that_ends_nothing_follows_nothing() {
    let tokenizer = Arc::new(Tokenizer::load(&ModelFiles::Demo).unwrap());
    let compiler = GrammarCompiler::new(tokenizer, crate::testing::VOCAB_SIZE, vec![], MEMORY_BYTES);
    assert_eq!(compiler.compile(&Arc::new(Grammar::JsonObject)).await.unwrap_err(), GrammarError::NoEos);
}

#[tokio::test]
async fn a_grammar_within_another_may_name_itself() {
    let answer = |rule: &str| Grammar::Lark(format!("start: {rule}").replace('@', &format!("@{ANSWER}")));
    let within = |rule| answer(rule).within(format!("start: \"(\" @{ANSWER}"));
    let error = refused(answer("\"a\" | \"b\" @")).await;
    assert!(error.contains(ANSWER), "the grammar is not within another: {error}");
    let text = walk(within("\"a\" | \"b\" @"), 1, 0).await;
    assert!(text.starts_with('(') && text.trim_start_matches(['(', 'b']) == "a", "{text}");
    // The answer's rule begins with itself.
    let text = walk(within("\"a\" | @ \"b\""), 1, 3).await;
    assert!(text.starts_with("(a") && text.trim_end_matches('b') == "(a", "{text}");
    // A rule that can never end compiles; the error comes only after the token that no token may follow.
    let (mut matcher, mask) = compiler().0.compile(&Arc::new(within("@ \"b\""))).await.unwrap().begin().unwrap();
    let [bracket] = allowed(&mask)[..] else { panic!("{:?}", allowed(&mask)) };
    assert!(matcher.advance(bracket).is_err());
}

#[tokio::test]
async fn wrong_values_of_keywords_are_refused_before_they_are_quoted() {
    let long = "é".repeat(60);
    for keyword in ["minimum", "multipleOf", "minLength", "pattern", "format", "prefixItems", "properties", "$ref"] {
        let wrong = if ["pattern", "format", "$ref"].contains(&keyword) { json!([long]) } else { json!(long) };
        let error = refused(Grammar::JsonSchema(json!({"type": "integer", keyword: wrong}))).await;
        assert!(error.starts_with(&format!("its `{keyword}` at # must be ")), "{error}");
    }
    let error = refused(Grammar::JsonSchema(json!({"required": [long, 7]}))).await;
    assert!(error.starts_with("its `required` at # must be a list of strings. Given: [\"éé"), "{error}");
}

#[tokio::test]
async fn a_grammar_that_fails_later_is_refused_at_once() {
    for grammar in [
        Grammar::Regex("(([a-z]{1,500}){1,500}){1,500}".to_owned()),
        Grammar::Regex("([a-z]{1,100}){1,100}".to_owned()),
        Grammar::Lark("start: A\nA: B{1,500}\nB: C{1,500}\nC: /[a-z]{1,500}/".to_owned()),
    ] {
        let error = refused(grammar).await;
        assert!(error.starts_with("the grammar cannot be followed: "), "{error}");
    }
    let text = walk(Grammar::Regex("([a-z]{1,20} ){1,100}".to_owned()), 3, 5).await;
    assert!(text.ends_with(' '), "{text}");
}

#[tokio::test]
async fn intersections_of_members_are_followed() {
    let name = json!({"type": "string", "pattern": "^[a-m]+$", "maxLength": 6});
    let schema = json!({
        "allOf": [{"properties": {"name": name}}, {"properties": {"name": {"pattern": "^[h-z]+$"}}}],
        "required": ["name"]
    });
    for seed in 0..5 {
        let text = walk(Grammar::JsonSchema(schema.clone()), seed, 0).await;
        let value: Value = serde_json::from_str(&text).unwrap();
        let name = value["name"].as_str().unwrap();
        assert!((1..=6).contains(&name.len()) && name.bytes().all(|byte| (b'h'..=b'm').contains(&byte)), "{text}");
    }
}

#[tokio::test]
async fn costly_intersections_keep_no_other_grammar_waiting() {
    let (compiler, _) = compiler();
    let compiler = Arc::new(compiler);
    let bomb = |number: usize| {
        let pattern = |n: u8| json!({"pattern": format!(".*[{}-z].{{{}}}", char::from(b'a' + n), 12 + number)});
        Arc::new(Grammar::JsonSchema(json!({"type": "string", "allOf": (0..20).map(pattern).collect::<Vec<_>>()})))
    };
    let num_bombs = 4 * crate::aside::num_turns();
    let mut bombs = tokio::task::JoinSet::new();
    for number in 0..num_bombs {
        let (compiler, bomb) = (Arc::clone(&compiler), bomb(number));
        bombs.spawn(async move { compiler.compile(&bomb).await.unwrap_err() });
    }
    for number in 0..20 {
        let small = Arc::new(Grammar::Regex(format!("[a-z]{{{}}}", number + 1)));
        assert!(compiler.compile(&small).await.is_ok());
    }
    assert!(!bombs.is_empty());
    while let Some(error) = bombs.join_next().await {
        let error = error.unwrap().to_string();
        assert!(error.starts_with("its intersections, complements or repeated groups take more than "), "{error}");
    }
    // The outcome is kept.
    assert!(compiler.compile(&bomb(0)).await.is_err());
}
