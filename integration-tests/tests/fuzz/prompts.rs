//! Prompts: texts of all lengths, with unusual characters and markup, and token ids.

use serde_json::Value;

use crate::draw::Draw;

/// Starts that many prompts share, each longer than a block of the prefix cache.
const BEGINNINGS: [&str; 3] = [
    "Once upon a time there was a little dog named Max. Max lived in a small house near the forest with Anna. One day",
    "Tom has a red ball. Anna has a blue ball. Lily has a green kite and a cat. They all play in the garden, and",
    "🤣🤣🤣 The answer is always 🤣🤣, whatever one asks. What is it today? It is 🤣🤣🤣🤣, and tomorrow it will be",
];
const ENDS: [&str; 8] = ["", " ", " a", " they went home.", " 7", " 🤣", "\n\n", " The end<|eos|>"];
const SHORT: [&str; 10] =
    ["a", " ", "\n", "🤣", "\u{0}", "Once", "Once upon a time a time", "{", "7 + 2 =", "\u{fffd}"];
const ODD: [&str; 7] = [
    "Zoë 日本語 🇩🇪 👩‍👩‍👧 e\u{301}",
    "\u{202e}abc\u{feff}\u{200b}\u{2028}",
    "<|bos|>Once<|eos|> upon <|pad|>a time",
    "<|user|>What is 7 + 2?<|assistant|>",
    "<|bos|><|bos|><|system|><|user|><|assistant|>",
    "<tool_call>\n{\"name\": \"x\", \"arguments\": {}}\n</tool_call>",
    "0123456789012345678901234567890123456789",
];
/// The numbers of words of long prompts. The demo's context has 1024 tokens, and each word is a token.
const LONG: [usize; 4] = [200, 600, 900, 1000];
const TOO_LONG: [usize; 4] = [1021, 1022, 1023, 5000];

/// The number of special tokens, whose ids come first in the demo's vocabulary.
const NUM_SPECIAL: usize = 6;
/// The size of the demo's vocabulary.
const VOCAB_SIZE: usize = 1536;

/// Draws a text.
pub(crate) fn text(draw: &mut Draw) -> String {
    if draw.goes_too_far() {
        return if draw.one_in(2) { String::new() } else { long(draw.pick(&TOO_LONG)) };
    }
    match draw.below(20) {
        0 => long(draw.pick(&LONG)),
        1..=4 => draw.pick(&ODD).to_owned(),
        5..=9 => draw.pick(&SHORT).to_owned(),
        _ => [draw.pick(&BEGINNINGS), draw.pick(&ENDS)].concat(),
    }
}

fn long(num_words: usize) -> String {
    " a".repeat(num_words)
}

/// Draws token ids, many of which have the same start.
pub(crate) fn token_ids(draw: &mut Draw) -> Vec<u32> {
    let len = draw.pick(&[1, 2, 17, 48, 300]);
    let mut token_ids: Vec<u32> = if draw.one_in(2) {
        (0..len).map(|number| 100 + 7 * number % 1400).collect()
    } else {
        (0..len).map(|_| draw.below(VOCAB_SIZE) as u32).collect()
    };
    if draw.one_in(3) {
        token_ids.push(draw.below(NUM_SPECIAL) as u32);
    }
    if draw.goes_too_far() {
        token_ids.push(draw.pick(&[VOCAB_SIZE as u32, VOCAB_SIZE as u32 + 1, u32::MAX]));
    }
    token_ids
}

/// Draws a prompt in one of the four forms of OpenAI's completions: a text, token ids, or a list of either.
pub(crate) fn any(draw: &mut Draw) -> Value {
    let count = if draw.goes_too_far() { draw.pick(&[0, 5]) } else { draw.pick(&[1, 2, 4]) };
    match draw.below(8) {
        0 => (0..count).map(|_| text(draw)).collect(),
        1 => (0..count).map(|_| token_ids(draw)).collect(),
        2 | 3 => token_ids(draw).into(),
        _ => text(draw).into(),
    }
}
