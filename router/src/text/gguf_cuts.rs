//! The rules by which byte-level tokenizers of GGUF files split texts into words.
//!
//! Entry point: [`CUTS`]. The names are llama.cpp's (`src/llama-vocab.cpp`), and the rules are those of the models' own
//! tokenizers.

use serde_json::{Value, json};

/// The rule that splits a text before its bytes are merged into tokens.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// The patterns that split the text one after another. Without any, GPT-2's pattern splits it.
    pub(super) patterns: &'static [&'static str],
    pub(super) has_single_digits: bool,
    pub(super) is_composed: bool,
    /// True if a whole word that is a token becomes this token, whatever the merges are.
    pub(super) ignores_merges: bool,
    /// True if a beginning-of-sequence token is added when the file does not say.
    pub(super) adds_bos: bool,
}

const GPT_2: Cut =
    Cut { patterns: &[], has_single_digits: false, is_composed: false, ignores_merges: false, adds_bos: false };
const BLOOM: Cut = Cut { patterns: &[r" ?[^(\s|.,!?…。，、।۔،)]+"], ..GPT_2 };
const DEEPSEEK_CODER: Cut =
    Cut {
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+"], has_single_digits: true, ..GPT_2
    };
const DEEPSEEK_LLM: Cut = Cut {
    patterns: &[
        r"[\r\n]",
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
    ],
    ..GPT_2
};
const DEEPSEEK_V3: Cut = Cut {
    patterns: &[
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ],
    ..GPT_2
};
const DIGITS: Cut = Cut { has_single_digits: true, ..GPT_2 };
const EXAONE_MOE: Cut = Cut {
    patterns: &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ],
    ..GPT_2
};
const FALCON: Cut = Cut {
    patterns: &[
        r"[\p{P}$+<=>^~|`]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"[0-9]{3}",
    ],
    ..GPT_2
};
const GPT_4O: Cut = Cut {
    patterns: &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    ..GPT_2
};
const JAIS_2: Cut = Cut {
    patterns: &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    ],
    ..GPT_2
};
const KIMI_K2: Cut = Cut {
    patterns: &[
        r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    ..GPT_2
};
const LLAMA_3: Cut = Cut {
    patterns: &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    ignores_merges: true,
    adds_bos: true,
    ..GPT_2
};
const QWEN_2: Cut = Cut {
    patterns: &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    is_composed: true,
    ..GPT_2
};
const SEED_CODER: Cut = Cut {
    patterns: &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    ..GPT_2
};
const TEKKEN: Cut = Cut {
    patterns: &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    ignores_merges: true,
    adds_bos: true,
    ..GPT_2
};
const YOUTU: Cut = Cut {
    patterns: &[
        r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    ignores_merges: true,
    ..GPT_2
};
/// The rules by their names in `tokenizer.ggml.pre`.
pub(super) const CUTS: [(&str, Cut); 39] = [
    ("bloom", BLOOM),
    ("chatglm-bpe", Cut { ignores_merges: false, adds_bos: false, ..LLAMA_3 }),
    ("command-r", Cut { is_composed: true, ..DIGITS }),
    ("dbrx", Cut { ignores_merges: false, adds_bos: false, ..LLAMA_3 }),
    ("deepseek-coder", DEEPSEEK_CODER),
    ("deepseek-llm", DEEPSEEK_LLM),
    ("deepseek-r1-qwen", Cut { is_composed: false, ..QWEN_2 }),
    ("deepseek-v3", DEEPSEEK_V3),
    ("default", GPT_2),
    ("exaone", DIGITS),
    ("exaone-moe", EXAONE_MOE),
    ("exaone4", GPT_2),
    ("falcon", FALCON),
    ("falcon3", LLAMA_3),
    ("glm4", Cut { adds_bos: false, ..LLAMA_3 }),
    ("gpt-2", GPT_2),
    ("gpt-4o", GPT_4O),
    ("hunyuan", Cut { is_composed: false, ..QWEN_2 }),
    ("hunyuan-dense", DEEPSEEK_V3),
    ("jais-2", JAIS_2),
    ("kimi-k2", KIMI_K2),
    ("llama-bpe", LLAMA_3),
    ("llama-v3", LLAMA_3),
    ("llama3", LLAMA_3),
    ("llama4", GPT_4O),
    ("minimax-m2", GPT_4O),
    ("mpt", Cut { is_composed: true, ..GPT_2 }),
    ("olmo", Cut { is_composed: true, ..GPT_2 }),
    ("phi-2", GPT_2),
    ("qwen2", QWEN_2),
    ("refact", DIGITS),
    ("seed-coder", SEED_CODER),
    ("smaug-bpe", LLAMA_3),
    ("smollm", DIGITS),
    ("solar-open", Cut { is_composed: false, ..QWEN_2 }),
    ("stablelm2", Cut { is_composed: false, ..QWEN_2 }),
    ("starcoder", DIGITS),
    ("tekken", TEKKEN),
    ("youtu", YOUTU),
];

impl Cut {
    /// Returns the pre-tokenizer, which splits a text and then writes its bytes as letters.
    pub(super) fn pre_tokenizer(self) -> Value {
        let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let mut steps: Vec<Value> = self.patterns.iter().map(split).collect();
        if self.has_single_digits {
            steps.push(json!({"type": "Digits", "individual_digits": true}));
        }
        steps.push(letters(self.patterns.is_empty()));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

/// Returns the step that writes bytes as letters, after it has split the text by GPT-2's pattern if `uses_regex`.
pub(super) fn letters(uses_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": uses_regex})
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

    use super::*;

    /// Returns the words into which a rule splits a text.
    fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let (_, cut) = CUTS.iter().find(|(known, _)| *known == name).unwrap();
        let steps: PreTokenizerWrapper = serde_json::from_value(cut.pre_tokenizer()).unwrap();
        let mut split = PreTokenizedString::from(text);
        steps.pre_tokenize(&mut split).unwrap();
        let pieces = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(_, (start, end), _)| &text[start..end]).collect()
    }

    /// `integration-tests/fixtures/make_gguf_cuts.py` splits the texts with llama.cpp's own patterns.
    #[test]
    fn texts_are_split_as_llama_cpp_splits_them() {
        let json = std::fs::read(checkpoints::tracked("gguf_cuts.json")).unwrap();
        let fixture: Value = serde_json::from_slice(&json).unwrap();
        let texts = fixture["texts"].as_array().unwrap();
        let rules = fixture["words"].as_object().unwrap();
        for (name, expected) in rules {
            for (text, expected) in texts.iter().zip(expected.as_array().unwrap()) {
                let found = words(name, text.as_str().unwrap());
                assert_eq!(Value::from(found), *expected, "{name}");
            }
        }
        assert!(rules.len() >= 30, "only {} rules", rules.len());
    }

    #[test]
    fn kimi_k2_separates_chinese_characters() {
        let found = words("kimi-k2", "It's猫が好き 12345!\n");
        assert_eq!(found, ["It's", "猫", "が", "好", "き", " ", "123", "45", "!\n"]);
    }

    #[test]
    fn names_are_in_order_and_once() {
        assert!(CUTS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
