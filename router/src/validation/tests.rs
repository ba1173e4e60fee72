//! Tests of the checks, in TGI's order.
//!
//! In the tests of the order, each request violates the rule that is tested and later ones, so both the order and the
//! messages are checked.

use std::sync::Arc;

use model_files::ModelFiles;
use proto::SamplingDefaults;
use serde_json::json;

use super::*;
use crate::api::GenerateParameters;
use crate::text::Tokenizer;

fn validator() -> Validator {
    let tokenizer = Arc::new(Tokenizer::load(&ModelFiles::Demo).unwrap());
    let grammars = GrammarCompiler::new(Arc::clone(&tokenizer), crate::testing::VOCAB_SIZE, vec![1], 256 << 20);
    let limits = crate::testing::request_limits();
    Validator::new(
        limits,
        TokenizerPool::spawn(&tokenizer, 1, crate::memory::Part::new(64 << 20)).unwrap(),
        Some(grammars),
    )
}

fn options(parameters: serde_json::Value) -> GenerationOptions {
    serde_json::from_value::<GenerateParameters>(parameters).unwrap().into_options(&SamplingDefaults::default())
}

async fn validate(inputs: &str, parameters: serde_json::Value) -> Result<ValidRequest, String> {
    validator()
        .validate(&PromptInput::Text(inputs.into()), &options(parameters))
        .await
        .map_err(|error| error.to_string())
}

/// Returns the message of the error of an invalid request.
async fn refusal(inputs: &str, parameters: serde_json::Value) -> String {
    validate(inputs, parameters).await.unwrap_err()
}

/// Returns a prompt that the demo tokenizer turns into `num_tokens` tokens: a special token, then one token for each
/// digit.
fn prompt(num_tokens: usize) -> String {
    "7".repeat(num_tokens - 1)
}

#[tokio::test]
async fn parameters_are_checked_in_the_order_of_tgi() {
    let stops = json!(["a", "b", "c", "d", "e"]);
    let rest = |from: usize| {
        let all = [
            ("temperature", json!(0.0)),
            ("repetition_penalty", json!(-1.0)),
            ("frequency_penalty", json!(2.5)),
            ("top_p", json!(1.5)),
            ("typical_p", json!(0.0)),
            ("min_p", json!(1.5)),
            ("presence_penalty", json!(2.5)),
            ("top_k", json!(0)),
            ("max_new_tokens", json!(0)),
            ("stop", stops.clone()),
            ("seed", json!(3)),
            ("top_n_tokens", json!(6)),
        ];
        let mut parameters: serde_json::Map<_, _> =
            all.into_iter().skip(from).map(|(name, value)| (name.to_owned(), value)).collect();
        parameters.insert("best_of".into(), json!(2));
        parameters.insert("do_sample".into(), json!(true));
        parameters.insert("truncate".into(), json!(0));
        parameters.into()
    };
    let mut errors = Vec::new();
    for from in 0..=12 {
        errors.push(refusal("", rest(from)).await);
    }
    insta::assert_snapshot!(errors.join("\n"), @r"
    `temperature` must be strictly positive
    `repetition_penalty` must be strictly positive
    `frequency_penalty` must be >= -2.0 and <= 2.0
    `top_p` must be > 0.0 and <= 1.0
    `typical_p` must be > 0.0 and <= 1.0
    `min_p` must be >= 0.0 and <= 1.0
    `presence_penalty` must be >= -2.0 and <= 2.0
    `top_k` must be strictly positive
    `max_new_tokens` must be strictly positive
    `stop` supports up to 4 stop sequences. Given: 5
    `seed` must not be set when `best_of` > 1
    `top_n_tokens` must be >= 0 and <= 5. Given: 6
    `inputs` cannot be empty
    ");
    insta::assert_snapshot!(refusal("", json!({"best_of": 2})).await, @"you must use sampling when `best_of` is > 1");
    insta::assert_snapshot!(
        refusal("", json!({"logit_bias": {"1535": 1, "1536": 1}})).await,
        @"`logit_bias` must name tokens of the model's vocabulary of 1536. Given: 1536"
    );
    insta::assert_snapshot!(
        refusal("", json!({"logit_bias": {"7": -101}})).await,
        @"`logit_bias` must be >= -100.0 and <= 100.0 for every token"
    );
    insta::assert_snapshot!(refusal("", json!({"stop": ["a", ""]})).await, @"`stop` sequences cannot be empty");
}

#[tokio::test]
async fn a_grammar_is_checked_last_and_ends_the_text_alone() {
    let grammar = |value: &str| json!({"type": "regex", "value": value});
    let error = validate("x", json!({"grammar": grammar("a(")})).await.unwrap_err();
    assert!(error.starts_with("grammar is not valid: ") && error.contains("unclosed group"), "{error}");
    insta::assert_snapshot!(
        refusal("x", json!({"grammar": grammar("a"), "ignore_eos_token": true})).await,
        @"`ignore_eos_token` cannot be given together with a grammar: the text ends where the grammar ends"
    );
    insta::assert_snapshot!(
        refusal("x", json!({"grammar": grammar("a"), "min_new_tokens": 3})).await,
        @"`min_new_tokens` cannot be given together with a grammar: the text ends where the grammar ends"
    );
    assert!(validate("x", json!({"grammar": grammar("a")})).await.unwrap().grammar.is_some());
    let disabled = Validator { grammars: None, ..validator() };
    let options = options(json!({"grammar": grammar("a")}));
    let error = disabled.validate(&PromptInput::Text("x".into()), &options).await.unwrap_err();
    insta::assert_snapshot!(error, @"grammar is not supported");
}

#[tokio::test]
async fn inputs_are_checked_in_the_order_of_tgi() {
    insta::assert_snapshot!(
        refusal("x", json!({"truncate": 0, "watermark": true})).await,
        @"`truncate` must be strictly positive and less than 20. Given: 0"
    );
    insta::assert_snapshot!(
        refusal("x", json!({"truncate": 21})).await,
        @"`truncate` must be strictly positive and less than 20. Given: 21"
    );
    insta::assert_snapshot!(
        refusal(&"x".repeat(65537), json!({})).await,
        @"`inputs` must have at most 65536 bytes. Given: 65537"
    );
    insta::assert_snapshot!(
        refusal(&prompt(25), json!({"max_new_tokens": 6, "grammar": {"type": "regex", "value": "("}})).await,
        @"`inputs` tokens + `max_new_tokens` must be <= 30. Given: 25 `inputs` tokens and 6 `max_new_tokens`"
    );
    insta::assert_snapshot!(
        refusal(&prompt(21), json!({"max_new_tokens": 9, "grammar": {"type": "regex", "value": "("}})).await,
        @"`inputs` must have less than 20 tokens. Given: 21"
    );
    insta::assert_snapshot!(
        refusal(&prompt(30), json!({})).await,
        @"`inputs` must have less than 20 tokens. Given: 30"
    );
    insta::assert_snapshot!(
        refusal("x", json!({"adapter_id": "mine"})).await,
        @"`adapter_id` is not supported. Given: mine"
    );
}

#[tokio::test]
async fn the_server_says_what_a_watermark_is() {
    for (watermark, expected) in [(true, 1.5), (false, 0.0)] {
        let sampling = validate("x", json!({"watermark": watermark})).await.unwrap().sampling;
        assert_eq!(sampling.watermark_delta, expected);
        assert!(sampling.is_greedy && (!watermark || sampling.watermark_gamma == 0.25), "{sampling:?}");
    }
}

#[tokio::test]
async fn boundaries_are_exact() {
    assert_eq!(validate(&prompt(20), json!({"max_new_tokens": 10})).await.unwrap().prompt.len(), 20);
    assert!(validate(&prompt(20), json!({"max_new_tokens": 11})).await.is_err());
    assert!(validate(&prompt(20), json!({"max_new_tokens": u32::MAX})).await.is_err());
    assert_eq!(validate(&prompt(12), json!({})).await.unwrap().max_new_tokens, 18);
    assert!(
        validate("x", json!({"top_p": 1.0, "typical_p": 1.0, "min_p": 1.0, "top_n_tokens": 5, "top_k": 1}))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn the_least_number_of_tokens_is_within_the_largest() {
    assert!(validate(&prompt(10), json!({"max_new_tokens": 5, "min_new_tokens": 5})).await.is_ok());
    assert!(validate(&prompt(10), json!({"min_new_tokens": 20})).await.is_ok());
    insta::assert_snapshot!(
        refusal(&prompt(10), json!({"max_new_tokens": 5, "min_new_tokens": 6})).await,
        @"`min_new_tokens` must be <= 5, the maximum number of tokens that this request can generate. Given: 6"
    );
    insta::assert_snapshot!(
        refusal(&prompt(10), json!({"min_new_tokens": 21})).await,
        @"`min_new_tokens` must be <= 20, the maximum number of tokens that this request can generate. Given: 21"
    );
    let mut validator = validator();
    validator.limits.num_eos_tokens = 9;
    assert!(validator.validate(&PromptInput::Text("x".into()), &options(json!({}))).await.is_ok());
    let options = options(json!({"min_new_tokens": 1}));
    insta::assert_snapshot!(
        validator.validate(&PromptInput::Text("x".into()), &options).await.unwrap_err(),
        @"`min_new_tokens` is not supported for models with more than 8 end-of-sequence tokens; this model has 9"
    );
}

#[tokio::test]
async fn truncation_keeps_the_end() {
    let whole = validate(&prompt(20), json!({})).await.unwrap().prompt;
    let cut = validate(&prompt(40), json!({"truncate": 5})).await.unwrap().prompt;
    assert_eq!((cut.len(), &cut[..]), (5, &whole[15..]));
    assert_eq!(validate(&prompt(5), json!({"truncate": 20})).await.unwrap().prompt.len(), 5);
}

#[tokio::test]
async fn ids_outside_the_model_are_refused() {
    let mut validator = validator();
    validator.limits.vocab_size = 3;
    let error = validator.validate(&PromptInput::Text("x".into()), &options(json!({}))).await.unwrap_err().to_string();
    insta::assert_snapshot!(error, @"tokenizer error token id 93 is outside the model's vocabulary of 3");
}

#[tokio::test]
async fn the_number_of_sequences_is_checked_before_anything_else() {
    let mut validator = validator();
    let check = |validator: &Validator, parameters, delivery, expected: Result<(), &str>| {
        let result = validator.check_sequences(&options(parameters), delivery).map_err(|error| error.to_string());
        assert_eq!(result.as_ref().map_err(String::as_str), expected.as_ref().map_err(|error| *error));
    };
    check(&validator, json!({}), Delivery::Whole, Ok(()));
    check(&validator, json!({"best_of": 2}), Delivery::Whole, Ok(()));
    let error = "`best_of` must be > 0 and <= 2. Given: 1000000";
    check(&validator, json!({"best_of": 1_000_000}), Delivery::Whole, Err(error));
    check(&validator, json!({"best_of": 0}), Delivery::Whole, Err("`best_of` must be > 0 and <= 2. Given: 0"));
    let error = "`best_of` != 1 is not supported when streaming tokens";
    check(&validator, json!({"best_of": 2}), Delivery::Stream, Err(error));
    check(&validator, json!({"best_of": 1}), Delivery::Stream, Ok(()));
    let error = "`decoder_input_details` == true is not supported when streaming tokens";
    check(&validator, json!({"decoder_input_details": true}), Delivery::Stream, Err(error));
    validator.limits.max_best_of = 1;
    check(&validator, json!({"best_of": 2}), Delivery::Whole, Err("`best_of` != 1 is not allowed for this endpoint"));
}
