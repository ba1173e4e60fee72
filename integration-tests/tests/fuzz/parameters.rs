//! The parameters of a generation, with the names of each dialect.

use serde_json::{Value, json};

use crate::body::Body;
use crate::draw::Draw;
use crate::grammars::Grammar;
use crate::numbers::{self, Whole};
use crate::requests::Form;

const NATIVE_WHOLES: [Whole; 3] = [
    Whole { name: "top_k", legal: &[1, 2, 5, 50, 1535, 1536, 2_147_483_647], beyond: &[0, -1, 4_294_967_296] },
    Whole { name: "truncate", legal: &[1, 5, 100, 1023], beyond: &[0, -1, 1024, 5000] },
    Whole { name: "top_n_tokens", legal: &[0, 1, 5], beyond: &[6, 1000, -1, 4_294_967_295] },
];
const BEST_OF: Whole = Whole { name: "best_of", legal: &[1, 2], beyond: &[0, 3, 1000] };
const OPENAI_WHOLES: [Whole; 1] =
    [Whole { name: "top_k", legal: &[-1, 0, 1, 2, 50, 1536, i64::MAX], beyond: &[-2, i64::MIN] }];
const ANTHROPIC_WHOLES: [Whole; 1] = [Whole { name: "top_k", legal: &[1, 5, 50], beyond: &[-1, 0, i64::MAX] }];
const NATIVE_FLAGS: [&str; 4] = ["do_sample", "details", "return_full_text", "watermark"];
const MIN_TOKENS: [i64; 4] = [0, 1, 3, 64];

const STOPS: [&str; 10] = ["a", " ", "time", ".", "🤣", "\n", "<|eos|>", "zzzz", "}", "Once upon a time"];
const MAX_STOPS: usize = 4;

/// The ids of the tokens of 🤣, of the end of sequence, and of some words, in the demo's vocabulary.
const TOKEN_IDS: [usize; 10] = [178, 259, 103, 102, 0, 1, 5, 70, 264, 1535];
const MAX_BIASES: usize = 300;
const BIASES: [f64; 6] = [-100.0, 100.0, 0.0, 1e-45, -0.5, 5.0];
const BIASES_BEYOND: [f64; 3] = [101.0, -3.4e38, 1e308];

/// One in this number of requests has a grammar. One in [`REQUESTS_PER_LONG_ONE`] does not set the maximum number of
/// tokens.
const REQUESTS_PER_GRAMMAR: u32 = 5;
const REQUESTS_PER_LONG_ONE: u32 = 60;
const MAX_TOKENS: [i64; 10] = [1, 1, 2, 3, 5, 8, 8, 12, 20, 60];
/// Limits on the tokens of answers with a form, which need some tokens to reach their end.
const MAX_TOKENS_OF_FORM: [i64; 3] = [8, 40, 120];
const TOO_MANY_TOKENS: [i64; 5] = [0, -2, 1025, 5000, 4_294_967_295];

/// Draws the object `parameters` of TGI's routes. Also returns the form that an answer has if the model ends it.
pub(crate) fn native(draw: &mut Draw, is_stream: bool) -> (Body, Form) {
    let mut body = Body::default();
    numbers::set_floats(&numbers::NATIVE, draw, &mut body);
    numbers::set_wholes(&NATIVE_WHOLES, draw, &mut body);
    for flag in NATIVE_FLAGS {
        if draw.has() {
            body.set(flag, draw.one_in(2));
        }
    }
    set_lists(draw, &mut body);
    let grammar = grammar(draw);
    if let Some(grammar) = &grammar {
        body.set("grammar", grammar.tagged(draw));
        // Only the details show if the answer was cut off.
        body.set("details", true);
    }
    set_ends(draw, &mut body, grammar.is_some(), ["ignore_eos_token", "min_new_tokens"]);
    if !is_stream || draw.goes_too_far() {
        if draw.has() {
            body.set("decoder_input_details", draw.one_in(2));
        }
        if draw.one_in(12) {
            body.set(BEST_OF.name, BEST_OF.draw(draw));
            body.set("do_sample", true);
            body.remove("seed");
        }
    }
    if draw.has() {
        body.set("adapter_id", if draw.goes_too_far() { Value::from("x") } else { Value::Null });
    }
    let form = grammar.map_or(Form::Any, |grammar| grammar.form());
    set_max_tokens(draw, &mut body, "max_new_tokens", form);
    (body, form)
}

/// Sets the fields that OpenAI's routes share, except for the maximum number of tokens. Returns the form that an answer
/// has if the model ends it.
pub(crate) fn openai(draw: &mut Draw, body: &mut Body) -> Form {
    body.set("model", "x");
    numbers::set_floats(&numbers::OPENAI, draw, body);
    numbers::set_wholes(&OPENAI_WHOLES, draw, body);
    set_lists(draw, body);
    let grammar = grammar(draw);
    if let Some(grammar) = &grammar {
        grammar.set_openai(draw, body);
    }
    set_ends(draw, body, grammar.is_some(), ["ignore_eos", "min_tokens"]);
    grammar.map_or(Form::Any, |grammar| grammar.form())
}

/// Sets the sampling parameters, the thinking and the grammar of Anthropic's route. Returns the form that an answer has
/// if the model ends it.
pub(crate) fn anthropic(draw: &mut Draw, body: &mut Body) -> Form {
    body.set("model", "x");
    numbers::set_floats(&numbers::ANTHROPIC, draw, body);
    numbers::set_wholes(&ANTHROPIC_WHOLES, draw, body);
    if draw.has() {
        body.set("stop_sequences", stops(draw));
    }
    if draw.has() {
        body.set("thinking", json!({"type": draw.pick(&["enabled", "disabled"]), "budget_tokens": 1024}));
    }
    let Some(grammar) = grammar(draw) else { return Form::Any };
    let tagged = grammar.tagged(draw);
    if draw.one_in(2) {
        body.set("output_config", json!({"format": tagged}));
    } else {
        body.set("output_format", tagged);
    }
    grammar.form()
}

/// Sets the maximum number of tokens to generate, in the field `name`. Some requests get no limit.
pub(crate) fn set_max_tokens(draw: &mut Draw, body: &mut Body, name: &str, form: Form) {
    if draw.one_in(REQUESTS_PER_LONG_ONE) {
        return;
    }
    let number = match form {
        _ if draw.goes_too_far() => draw.pick(&TOO_MANY_TOKENS),
        Form::Any => draw.pick(&MAX_TOKENS),
        Form::Json | Form::Calls => draw.pick(&MAX_TOKENS_OF_FORM),
    };
    body.set(name, number);
}

fn grammar(draw: &mut Draw) -> Option<Grammar> {
    draw.one_in(REQUESTS_PER_GRAMMAR).then(|| Grammar::draw(draw))
}

/// Sets stop strings, biases and a 64-bit seed, each in some requests.
fn set_lists(draw: &mut Draw, body: &mut Body) {
    if draw.one_in(3) && draw.has() {
        body.set("stop", stops(draw));
    }
    if draw.has() {
        body.set("logit_bias", biases(draw));
    }
    if draw.has() {
        let seed = if draw.one_in(2) { draw.pick(&[0, 1, u64::MAX]) } else { draw.any() };
        body.set("seed", if draw.goes_too_far() { Value::from(-1) } else { Value::from(seed) });
    }
}

/// Sets parameters that suppress the end of sequence. The server refuses them together with a grammar, so a legal
/// request has only one of both.
fn set_ends(draw: &mut Draw, body: &mut Body, has_grammar: bool, [ignore_eos, min_tokens]: [&str; 2]) {
    if has_grammar && !draw.goes_too_far() {
        return;
    }
    if draw.has() {
        body.set(ignore_eos, draw.one_in(2));
    }
    if draw.has() {
        body.set(min_tokens, draw.pick(&MIN_TOKENS));
    }
}

fn stops(draw: &mut Draw) -> Value {
    if draw.goes_too_far() {
        return draw.take(vec![json!([""]), json!(["a", "b", "c", "d", "e"]), json!([]), Value::Null]);
    }
    let count = 1 + draw.below(MAX_STOPS);
    (0..count).map(|_| draw.pick(&STOPS)).collect()
}

fn biases(draw: &mut Draw) -> Value {
    let goes_too_far = draw.goes_too_far();
    let values = if goes_too_far { &BIASES_BEYOND[..] } else { &BIASES[..] };
    let mut biases = Body::default();
    if draw.one_in(8) {
        let count = if goes_too_far { MAX_BIASES + 1 } else { MAX_BIASES };
        let bias = draw.pick(values);
        (0..count).for_each(|id| biases.set(&id.to_string(), bias));
        return biases.into();
    }
    for _ in 0..=draw.below(6) {
        let id = if goes_too_far { 1536 } else { draw.pick(&TOKEN_IDS) };
        biases.set(&id.to_string(), draw.pick(values));
    }
    biases.into()
}
