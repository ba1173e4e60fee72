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

async fn check_error(inputs: &str, parameters: serde_json::Value, expected: &str) {
    assert_eq!(validate(inputs, parameters.clone()).await.unwrap_err(), expected, "{parameters}");
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
    let expected = [
        "`temperature` must be strictly positive",
        "`repetition_penalty` must be strictly positive",
        "`frequency_penalty` must be >= -2.0 and <= 2.0",
        "`top_p` must be > 0.0 and <= 1.0",
        "`typical_p` must be > 0.0 and <= 1.0",
        "`min_p` must be >= 0.0 and <= 1.0",
        "`presence_penalty` must be >= -2.0 and <= 2.0",
        "`top_k` must be strictly positive",
        "`max_new_tokens` must be strictly positive",
        "`stop` supports up to 4 stop sequences. Given: 5",
        "`seed` must not be set when `best_of` > 1",
        "`top_n_tokens` must be >= 0 and <= 5. Given: 6",
        "`inputs` cannot be empty",
    ];
    for (from, expected) in expected.into_iter().enumerate() {
        check_error("", rest(from), expected).await;
    }
    check_error("", json!({"best_of": 2}), "you must use sampling when `best_of` is > 1").await;
    let names = "`logit_bias` must name tokens of the model's vocabulary of 1536. Given: 1536";
    check_error("", json!({"logit_bias": {"1535": 1, "1536": 1}}), names).await;
    let range = "`logit_bias` must be >= -100.0 and <= 100.0 for every token";
    check_error("", json!({"logit_bias": {"7": -101}}), range).await;
    check_error("", json!({"stop": ["a", ""]}), "`stop` sequences cannot be empty").await;
}

#[tokio::test]
async fn a_grammar_is_checked_last_and_ends_the_text_alone() {
    let grammar = |value: &str| json!({"type": "regex", "value": value});
    let error = validate("x", json!({"grammar": grammar("a(")})).await.unwrap_err();
    assert!(error.starts_with("grammar is not valid: ") && error.contains("unclosed group"), "{error}");
    let both = "`ignore_eos_token` cannot be given together with a grammar: the text ends where the grammar ends";
    check_error("x", json!({"grammar": grammar("a"), "ignore_eos_token": true}), both).await;
    let both = "`min_new_tokens` cannot be given together with a grammar: the text ends where the grammar ends";
    check_error("x", json!({"grammar": grammar("a"), "min_new_tokens": 3}), both).await;
    assert!(validate("x", json!({"grammar": grammar("a")})).await.unwrap().grammar.is_some());
    let disabled = Validator { grammars: None, ..validator() };
    let options = options(json!({"grammar": grammar("a")}));
    let error = disabled.validate(&PromptInput::Text("x".into()), &options).await.unwrap_err();
    assert_eq!(error.to_string(), "grammar is not supported");
}

#[tokio::test]
async fn inputs_are_checked_in_the_order_of_tgi() {
    let truncate = "`truncate` must be strictly positive and less than 20. Given: ";
    check_error("x", json!({"truncate": 0, "watermark": true}), &format!("{truncate}0")).await;
    check_error("x", json!({"truncate": 21}), &format!("{truncate}21")).await;
    let bytes = "`inputs` must have at most 65536 bytes. Given: 65537";
    check_error(&"x".repeat(65537), json!({}), bytes).await;
    let total = "`inputs` tokens + `max_new_tokens` must be <= 30. Given: 25 `inputs` tokens and 6 `max_new_tokens`";
    check_error(&prompt(25), json!({"max_new_tokens": 6, "grammar": {"type": "regex", "value": "("}}), total).await;
    let input = "`inputs` must have less than 20 tokens. Given: 21";
    check_error(&prompt(21), json!({"max_new_tokens": 9, "grammar": {"type": "regex", "value": "("}}), input).await;
    check_error(&prompt(30), json!({}), "`inputs` must have less than 20 tokens. Given: 30").await;
    check_error("x", json!({"adapter_id": "mine"}), "`adapter_id` is not supported. Given: mine").await;
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
    let error = "`min_new_tokens` must be <= 5, the maximum number of tokens that this request can generate. Given: 6";
    check_error(&prompt(10), json!({"max_new_tokens": 5, "min_new_tokens": 6}), error).await;
    let error =
        "`min_new_tokens` must be <= 20, the maximum number of tokens that this request can generate. Given: 21";
    check_error(&prompt(10), json!({"min_new_tokens": 21}), error).await;
    let mut validator = validator();
    validator.limits.num_eos_tokens = 9;
    assert!(validator.validate(&PromptInput::Text("x".into()), &options(json!({}))).await.is_ok());
    let error = validator
        .validate(&PromptInput::Text("x".into()), &options(json!({"min_new_tokens": 1})))
        .await
        .unwrap_err()
        .to_string();
    let expected =
        "`min_new_tokens` is not supported for models with more than 8 end-of-sequence tokens; this model has 9";
    assert_eq!(error, expected);
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
    assert!(error.starts_with("tokenizer error token id "), "{error}");
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
