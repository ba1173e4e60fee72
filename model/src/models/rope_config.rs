//! Rotary parameters in config.json: `rope_theta` and `rope_scaling`, or `rope_parameters`, which contains both.
//!
//! Entry points: [`read`] for all layers, [`read_kind`] for models that have parameters for each kind of layer,
//! [`longest`], [`score_factor`]. Transformers 5 writes `rope_parameters`. An unknown scaling, or an unknown key of a
//! scaling, is an error.
//!
//! Transformers recomputes the frequencies of `dynamic`, and chooses the frequencies of `longrope`, by the length of
//! each sequence. In this server a row's tokens must not depend on the chunks of its prompt, so both scalings use the
//! frequencies of the longest sequence that config.json allows.

use serde_json::{Map, Value};

use super::{Config, ModelError};
use crate::graph::{Pairing, RotarySpec};
use crate::layers::{RotaryScaling, Yarn};

const DEFAULT_THETA: f64 = 10_000.0;
/// The key that says that adjacent values are rotated together, because llama.cpp's converter has sorted the rows of
/// the query and key matrices so. Only `gguf` writes it.
pub(super) const INTERLEAVED: &str = "rope_interleaved";
const KNOWN_TYPES: &str = "default, linear, dynamic, llama3, yarn, longrope or proportional";
const KNOWN_KEYS: [&str; 16] = [
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "truncate",
    "type",
];

/// The rotary parameters of one kind of layer: the whole config, and the object `own` with the parameters.
struct Parameters<'a> {
    config: &'a Config,
    own: Config,
}

/// Returns the rotary embedding of `config` for heads of `head_dim`. If config.json has parameters for each kind of
/// layer, returns the embedding of `full_attention`.
///
/// # Errors
/// When the scaling is unknown or lacks a parameter, a value is out of range, or the rotated part of a head has an odd
/// size. The message names the key and its value.
pub(super) fn read(config: &Config, head_dim: usize, pairing: Pairing) -> Result<RotarySpec, ModelError> {
    Parameters::new(config)?.spec(head_dim, pairing)
}

/// As [`read`] for one kind of layer, such as `sliding_attention`; `None` if config.json has no parameters for that
/// kind.
///
/// # Errors
/// As [`read`].
pub(super) fn read_kind(config: &Config, head_dim: usize, kind: &str) -> Result<Option<RotarySpec>, ModelError> {
    let Some(kinds) = config.object("rope_parameters")? else { return Ok(None) };
    let Some(Value::Object(own)) = kinds.get(kind) else { return Ok(None) };
    let own = config.nested(&format!("rope_parameters.{kind}"), own.clone());
    Parameters { config, own }.spec(head_dim, Pairing::Halves).map(Some)
}

/// Returns the length of the longest sequence that `config` allows, in tokens: `max_position_embeddings`, or for
/// `dynamic` and `yarn` the original context times the factor, if that is longer.
///
/// # Errors
/// When the keys are malformed.
pub(super) fn longest(config: &Config, max_position_embeddings: usize) -> Result<usize, ModelError> {
    let parameters = Parameters::new(config)?;
    let factor = parameters.own.number("factor")?.unwrap_or(1.0);
    let original = match parameters.scaling_type()?.as_str() {
        "dynamic" => Some(max_position_embeddings as f64),
        "yarn" => parameters.own.number("original_max_position_embeddings")?,
        _ => None,
    };
    Ok(max_position_embeddings.max((original.unwrap_or(0.0) * factor) as usize))
}

/// Returns the factor by which `mscale_all_dim` raises attention scores, as in DeepSeek's models; 1 without that key.
///
/// # Errors
/// When the keys are malformed, or there is `mscale_all_dim` without `factor`.
pub(super) fn score_factor(config: &Config) -> Result<f64, ModelError> {
    let parameters = Parameters::new(config)?;
    let mscale = parameters.own.number_or("mscale_all_dim", 0.0)?;
    if mscale == 0.0 || parameters.scaling_type()? == "default" {
        return Ok(1.0);
    }
    Ok(grown(parameters.own.required_number("factor")?, mscale).powi(2))
}

/// Returns the factor of yarn (arXiv 2309.00071) for the attention to contexts that are `factor` times as long.
fn grown(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

impl<'a> Parameters<'a> {
    fn new(config: &'a Config) -> Result<Self, ModelError> {
        let (key, own) = match (config.object("rope_parameters")?, config.object("rope_scaling")?) {
            (Some(parameters), _) => match parameters.get("full_attention") {
                Some(Value::Object(own)) => ("rope_parameters.full_attention", own.clone()),
                Some(_) | None => ("rope_parameters", parameters.clone()),
            },
            (None, Some(scaling)) => ("rope_scaling", scaling.clone()),
            (None, None) => ("rope_scaling", Map::new()),
        };
        Ok(Self { config, own: config.nested(key, own) })
    }

    fn spec(&self, head_dim: usize, pairing: Pairing) -> Result<RotarySpec, ModelError> {
        let pairing = if self.config.flag_or(INTERLEAVED, false)? { Pairing::Neighbours } else { pairing };
        self.own.require_known(&KNOWN_KEYS)?;
        let theta = self.number_of_either("rope_theta")?.unwrap_or(DEFAULT_THETA);
        if theta <= 0.0 {
            return Err(self.config.invalid("rope_theta", theta, "a positive number"));
        }
        let partial = self.number_of_either("partial_rotary_factor")?.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&partial) {
            return Err(self.config.invalid("partial_rotary_factor", partial, "a number from 0 to 1"));
        }
        let is_proportional = self.scaling_type()? == "proportional";
        let rotary_dim = if is_proportional { head_dim } else { (head_dim as f64 * partial) as usize };
        if !rotary_dim.is_multiple_of(2) {
            return Err(match rotary_dim == head_dim {
                true => self.config.invalid("head_dim", head_dim, "an even number"),
                false => self.config.invalid("partial_rotary_factor", partial, "an even part of head_dim"),
            });
        }
        let scaling = if is_proportional {
            let factor = self.own.number_or("factor", 1.0)?;
            RotaryScaling::Proportional { num_rotated: (head_dim as f64 * partial / 2.0) as usize, factor }
        } else {
            self.scaling(rotary_dim)?
        };
        Ok(scaling.spec(theta, rotary_dim, pairing))
    }

    fn scaling(&self, rotary_dim: usize) -> Result<RotaryScaling, ModelError> {
        let factor = || self.own.required_number("factor");
        Ok(match self.scaling_type()?.as_str() {
            "default" => RotaryScaling::Default,
            "linear" => RotaryScaling::Linear { factor: factor()? },
            "dynamic" => RotaryScaling::Dynamic { factor: factor()? },
            "llama3" => RotaryScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: self.own.required_number("low_freq_factor")?,
                high_freq_factor: self.own.required_number("high_freq_factor")?,
                original_max_position_embeddings: self.original()?,
            },
            "yarn" => RotaryScaling::Yarn(self.yarn()?),
            "longrope" | "su" => self.long_rope(rotary_dim)?,
            other => return Err(self.own.invalid("rope_type", Value::from(other), KNOWN_TYPES)),
        })
    }

    fn yarn(&self) -> Result<Yarn, ModelError> {
        let original = self.original()?;
        let factor = self.factor(original)?;
        let grown = |mscale: f64| grown(factor, mscale);
        let mscales = [self.own.number("mscale")?, self.own.number("mscale_all_dim")?];
        let attention_factor = match (self.own.number("attention_factor")?, mscales) {
            (Some(attention_factor), _) => attention_factor,
            (None, [Some(mscale), Some(all)]) if mscale != 0.0 && all != 0.0 => grown(mscale) / grown(all),
            (None, _) => grown(1.0),
        };
        Ok(Yarn {
            factor,
            beta_fast: self.own.number_or("beta_fast", 32.0)?,
            beta_slow: self.own.number_or("beta_slow", 1.0)?,
            original_max_position_embeddings: original,
            is_truncated: self.own.flag_or("truncate", true)?,
            attention_factor,
        })
    }

    fn long_rope(&self, rotary_dim: usize) -> Result<RotaryScaling, ModelError> {
        let original = self.original()?;
        let factor = self.factor(original)?;
        let grown = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
        let attention_factor = self.own.number_or("attention_factor", grown)?;
        let is_long = self.config.required_number("max_position_embeddings")? > original;
        let key = if is_long { "long_factor" } else { "short_factor" };
        let factors = self.own.numbers(key)?;
        if factors.len() != rotary_dim / 2 {
            let expected = format!("{} numbers, one for each frequency", rotary_dim / 2);
            return Err(self.own.invalid(key, format!("{} numbers", factors.len()), &expected));
        }
        Ok(RotaryScaling::LongRope { factors, attention_factor })
    }

    /// Returns `factor`, or if it is absent the ratio of `max_position_embeddings` to the original context.
    fn factor(&self, original: f64) -> Result<f64, ModelError> {
        match self.own.number("factor")? {
            Some(factor) => Ok(factor),
            None => Ok(self.config.required_number("max_position_embeddings")? / original),
        }
    }

    /// Returns the length of the sequences of the original training.
    fn original(&self) -> Result<f64, ModelError> {
        match self.number_of_either("original_max_position_embeddings")? {
            Some(original) => Ok(original),
            None => self.config.required_number("max_position_embeddings"),
        }
    }

    fn number_of_either(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.own.number(key)? {
            Some(number) => Ok(Some(number)),
            None => self.config.number(key),
        }
    }

    fn scaling_type(&self) -> Result<String, ModelError> {
        let named = match self.own.text("rope_type")? {
            Some(name) => Some(name),
            None => self.own.text("type")?,
        };
        match named {
            Some(name) => Ok(name.to_owned()),
            // Old checkpoints omit the type only if nothing is scaled, and then they also have no factor.
            None if self.own.number("factor")?.is_none() => Ok("default".to_owned()),
            None => Err(self.own.missing("rope_type")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(json: &str) -> Result<RotarySpec, String> {
        read(&Config::parse(json.as_bytes()).unwrap(), 8, Pairing::Halves).map_err(|error| error.to_string())
    }

    fn spec(scaling: &RotaryScaling, theta: f64) -> RotarySpec {
        scaling.spec(theta, 8, Pairing::Halves)
    }

    #[test]
    fn both_spellings_agree() {
        let plain = spec(&RotaryScaling::Default, 500.0);
        assert_eq!(read_text(r#"{"rope_theta": 500.0, "rope_scaling": null}"#), Ok(plain.clone()));
        assert_eq!(read_text(r#"{"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}"#), Ok(plain));
        let scaled = spec(&RotaryScaling::Linear { factor: 2.0 }, 10_000.0);
        assert_eq!(read_text(r#"{"rope_scaling": {"type": "linear", "factor": 2}}"#), Ok(scaled));
    }

    #[test]
    fn kinds_of_layers_have_their_own() {
        let of_kind = |theta: f64| format!(r#"{{"rope_type": "default", "rope_theta": {theta:.1}}}"#);
        let kinds = format!(r#""full_attention": {}, "sliding_attention": {}"#, of_kind(500.0), of_kind(70.0));
        let json = format!(r#"{{"rope_parameters": {{{kinds}}}}}"#);
        assert_eq!(read_text(&json), Ok(spec(&RotaryScaling::Default, 500.0)));
        let config = Config::parse(json.as_bytes()).unwrap();
        let local = read_kind(&config, 8, "sliding_attention").unwrap();
        assert_eq!(local, Some(spec(&RotaryScaling::Default, 70.0)));
        assert_eq!(read_kind(&config, 8, "other").unwrap(), None);
    }

    #[test]
    fn llama3_reads_its_four_numbers() {
        let numbers = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0"#;
        let scaling = RotaryScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 32.0,
        };
        let json = format!(
            r#"{{"rope_scaling": {{"rope_type": "llama3", {numbers}, "original_max_position_embeddings": 32}}}}"#
        );
        assert_eq!(read_text(&json), Ok(spec(&scaling, 10_000.0)));
        let error = read_text(r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}"#).unwrap_err();
        insta::assert_snapshot!(error, @"config.json has no rope_scaling.low_freq_factor");
    }

    #[test]
    fn a_part_of_each_head_is_rotated() {
        let half = read_text(r#"{"partial_rotary_factor": 0.5}"#).unwrap();
        assert_eq!(half, RotaryScaling::Default.spec(10_000.0, 4, Pairing::Halves));
        let error = read_text(r#"{"rope_parameters": {"partial_rotary_factor": 0.4}}"#).unwrap_err();
        insta::assert_snapshot!(error, @"config.json: partial_rotary_factor is 0.4, expected an even part of head_dim");
    }

    #[test]
    fn a_part_of_the_frequencies_is_used() {
        let scaling = r#""rope_type": "proportional", "partial_rotary_factor": 0.75, "rope_theta": 100.0"#;
        let expected = |factor| spec(&RotaryScaling::Proportional { num_rotated: 3, factor }, 100.0);
        assert_eq!(read_text(&format!(r#"{{"rope_parameters": {{{scaling}}}}}"#)), Ok(expected(1.0)));
        assert_eq!(read_text(&format!(r#"{{"rope_parameters": {{{scaling}, "factor": 8}}}}"#)), Ok(expected(8.0)));
    }

    #[test]
    fn the_longest_sequence_chooses_the_factors() {
        let config = |max: usize| {
            let scaling =
                r#""rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [2, 2, 2, 2]}"#;
            format!(r#"{{"max_position_embeddings": {max}, "original_max_position_embeddings": 16, {scaling}}}"#)
        };
        let factors =
            |factor: f64, attention_factor| RotaryScaling::LongRope { factors: vec![factor; 4], attention_factor };
        assert_eq!(read_text(&config(16)), Ok(spec(&factors(1.0, 1.0), 10_000.0)));
        // The attention factor is the square root of 1 + ln 4 / ln 16.
        assert_eq!(read_text(&config(64)), Ok(spec(&factors(2.0, 1.5_f64.sqrt()), 10_000.0)));
        let error = read_text(&config(64).replace("[2, 2, 2, 2]", "[2, 2]")).unwrap_err();
        let expected = "config.json: rope_scaling.long_factor is 2 numbers, expected 4 numbers, one for each frequency";
        assert_eq!(error, expected);
    }

    #[test]
    fn scalings_make_sequences_longer() {
        let longest = |json: &str| longest(&Config::parse(json.as_bytes()).unwrap(), 100).unwrap();
        assert_eq!(longest("{}"), 100);
        assert_eq!(longest(r#"{"rope_scaling": {"type": "dynamic", "factor": 2.5}}"#), 250);
        let yarn = r#""type": "yarn", "factor": 4, "original_max_position_embeddings":"#;
        assert_eq!(longest(&format!(r#"{{"rope_scaling": {{{yarn} 50}}}}"#)), 200);
        assert_eq!(longest(&format!(r#"{{"rope_scaling": {{{yarn} 20}}}}"#)), 100);
        assert_eq!(longest(r#"{"rope_scaling": {"type": "linear", "factor": 8}}"#), 100);
    }

    #[test]
    fn unknown_scalings_are_refused() {
        let error = read_text(r#"{"rope_scaling": {"rope_type": "abc", "factor": 4.0}}"#).unwrap_err();
        insta::assert_snapshot!(
            error,
            @r#"config.json: rope_scaling.rope_type is "abc", expected default, linear, dynamic, llama3, yarn, longrope or proportional"#
        );
        let error = read_text(r#"{"rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}}"#).unwrap_err();
        insta::assert_snapshot!(error, @"config.json: rope_scaling.mrope_section is [1,2]; only null is supported");
    }
}
