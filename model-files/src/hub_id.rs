//! The names of models on the Hugging Face Hub.
//!
//! Entry point: [`HubModel::parse`].

/// A model on the Hub, `organisation/name`, and the quantization of its GGUF files after a colon, as llama.cpp and
/// ollama write it: `organisation/name:Q4_K_M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubModel<'a> {
    /// `organisation/name`
    pub name: &'a str,
    /// The quantization, such as `Q4_K_M`; `None` if there is no colon.
    pub quantization: Option<&'a str>,
}

impl<'a> HubModel<'a> {
    /// Returns the model that `model_id` names; `None` if it is not like the name of a model on the Hub.
    pub fn parse(model_id: &'a str) -> Option<Self> {
        let (name, quantization) = match model_id.split_once(':') {
            Some((name, quantization)) => (name, Some(quantization)),
            None => (model_id, None),
        };
        let (organisation, own) = name.split_once('/')?;
        let parts = [organisation, own].into_iter().chain(quantization);
        parts.into_iter().all(is_name).then_some(Self { name, quantization })
    }
}

/// True if all characters are those of names on the Hub.
fn is_name(part: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantization_follows_a_colon() {
        let found = HubModel::parse("org/Qwen3-8B-GGUF:UD-Q4_K_XL");
        assert_eq!(found, Some(HubModel { name: "org/Qwen3-8B-GGUF", quantization: Some("UD-Q4_K_XL") }));
        assert_eq!(HubModel::parse("org/x"), Some(HubModel { name: "org/x", quantization: None }));
        for other in ["org", "org/x:", "org/x:a/b", "org/x:y:z", "a/b/c", "org/x:..", ":a/b"] {
            assert_eq!(HubModel::parse(other), None, "{other}");
        }
    }
}
