//! The sampling defaults in a model's `generation_config.json`.
//!
//! Entry point: [`read`]. As in transformers, only the repetition penalty counts unless `do_sample` is true. The
//! end-of-sequence tokens in the same file are read by [`Config`](super::Config).

use proto::SamplingDefaults;
use serde_json::{Map, Value};

use super::ModelError;

const FILE: &str = "generation_config.json";

/// Returns the defaults in `json`, the content of the file; no defaults if there is no file.
///
/// # Errors
/// When the file is malformed. The message names the file, and for a wrong value its key and the values allowed.
pub fn read(json: Option<&[u8]>) -> Result<SamplingDefaults, ModelError> {
    let Some(json) = json else { return Ok(SamplingDefaults::default()) };
    let value: Value = serde_json::from_slice(json).map_err(|source| ModelError::Json { file: FILE, source })?;
    let Value::Object(keys) = value else { return Err(ModelError::NotAnObject { file: FILE }) };
    let repetition_penalty = number(&keys, "repetition_penalty")?;
    if keys.get("do_sample") != Some(&Value::Bool(true)) {
        return Ok(SamplingDefaults { repetition_penalty, ..SamplingDefaults::default() });
    }
    Ok(SamplingDefaults {
        draws: true,
        temperature: number(&keys, "temperature")?,
        top_k: number(&keys, "top_k")?.map(|top_k| top_k as u32),
        top_p: number(&keys, "top_p")?,
        min_p: number(&keys, "min_p")?,
        typical_p: number(&keys, "typical_p")?,
        repetition_penalty,
    })
}

fn number(keys: &Map<String, Value>, key: &str) -> Result<Option<f32>, ModelError> {
    let Some(value) = keys.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    let number = value.as_f64().filter(|number| *number >= 0.0);
    let wrong = || ModelError::Value {
        file: FILE,
        key: key.to_owned(),
        value: value.to_string(),
        expected: "a number that is not negative".to_owned(),
    };
    number.map(|number| Some(number as f32)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_for_drawing_count_only_if_tokens_are_drawn() {
        let read = |json: &str| read(Some(json.as_bytes())).map_err(|error| error.to_string());
        let json =
            r#""temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1, "eos_token_id": [1, 2]"#;
        let penalised = SamplingDefaults { repetition_penalty: Some(1.1), ..SamplingDefaults::default() };
        let drawn =
            SamplingDefaults { draws: true, temperature: Some(0.6), top_k: Some(20), top_p: Some(0.95), ..penalised };
        assert_eq!(read(&format!("{{{json}, \"do_sample\": true}}")), Ok(drawn));
        for json in [format!("{{{json}}}"), format!("{{{json}, \"do_sample\": false}}")] {
            assert_eq!(read(&json), Ok(penalised), "{json}");
        }
        assert_eq!(super::read(None).unwrap(), SamplingDefaults::default());
        let error = read(r#"{"do_sample": true, "top_p": "x"}"#).unwrap_err();
        insta::assert_snapshot!(
            error,
            @"generation_config.json: top_p is \"x\", expected a number that is not negative"
        );
    }
}
