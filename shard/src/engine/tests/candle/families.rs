//! Models of candle that read checkpoints in safetensors.

use candle_core::{DType, Device};
use candle_transformers::models;

use super::rows::ROWS;
use super::{Forward, Given, Row, compare, complaint, prepare};

/// Defines a function that loads a model whose `new` takes a configuration and weights.
macro_rules! loads {
    ($name:ident, $($path:ident)::+) => {
        pub(super) fn $name(given: &Given) -> candle_core::Result<Forward> {
            let mut model = models::$($path)::+::new(&given.config()?, given.weights())?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        }
    };
}

/// As `loads`, for models whose `new` first takes a choice of flash attention.
macro_rules! loads_without_flash {
    ($name:ident, $($path:ident)::+) => {
        pub(super) fn $name(given: &Given) -> candle_core::Result<Forward> {
            let mut model = models::$($path)::+::new(false, &given.config()?, given.weights())?;
            Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
        }
    };
}

loads!(mistral, mistral::Model);
loads!(mixtral, mixtral::Model);
loads!(qwen2, qwen2::ModelForCausalLM);
loads!(qwen2_moe, qwen2_moe::Model);
loads!(qwen3, qwen3::ModelForCausalLM);
loads!(qwen3_moe, qwen3_moe::ModelForCausalLM);
loads!(phi3, phi3::Model);
loads!(starcoder2, starcoder2::Model);
loads!(glm4_new, glm4_new::ModelForCausalLM);
loads!(olmo, olmo::Model);
loads!(olmo2, olmo2::Model);
loads!(stable_lm, stable_lm::Model);
loads!(helium, helium::Model);
loads!(smollm3, smol::smollm3::ModelForCausalLM);
loads!(deepseek2, deepseek2::DeepSeekV2);
loads_without_flash!(gemma, gemma::Model);
loads_without_flash!(gemma2, gemma2::Model);
loads_without_flash!(gemma3, gemma3::Model);

pub(super) fn llama(given: &Given) -> candle_core::Result<Forward> {
    let config = given.config::<models::llama::LlamaConfig>()?.into_config(false);
    let model = models::llama::Llama::load(given.weights(), &config)?;
    let mut cache = models::llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
    Ok(Box::new(move |tokens, position| model.forward(tokens, position, &mut cache)))
}

pub(super) fn granite(given: &Given) -> candle_core::Result<Forward> {
    let config = given.config::<models::granite::GraniteConfig>()?.into_config(false);
    let model = models::granite::Granite::load(given.weights(), &config)?;
    let mut cache = models::granite::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
    Ok(Box::new(move |tokens, position| model.forward(tokens, position, &mut cache)))
}

/// As [`granite`], with weights that contain the multipliers, which candle does not read.
pub(super) fn granite_undone(given: &Given) -> candle_core::Result<Forward> {
    let number = |key: &str| given.config[key].as_f64().unwrap();
    let head_dim = number("hidden_size") / number("num_attention_heads");
    let factors = [
        ("embed_tokens.weight", number("embedding_multiplier")),
        ("q_proj.weight", number("attention_multiplier") * head_dim.sqrt()),
        ("o_proj.weight", number("residual_multiplier")),
        ("down_proj.weight", number("residual_multiplier")),
        ("lm_head.weight", 1.0 / number("logits_scaling")),
    ];
    let mut tensors = given.tensors.clone();
    for (name, weight) in &mut tensors {
        if let Some((_, factor)) = factors.iter().find(|(end, _)| name.ends_with(end)) {
            *weight = (weight.to_dtype(DType::F32)? * *factor)?;
        }
    }
    granite(&Given { config: given.config.clone(), tensors })
}

pub(super) fn gemma4(given: &Given) -> candle_core::Result<Forward> {
    let mut model = models::gemma4::text::TextModel::new(&given.config()?, given.weights())?;
    Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
}

/// Loads the text of a composite model.
pub(super) fn gemma4_text(given: &Given) -> candle_core::Result<Forward> {
    let tensors = given.tensors.iter().map(|(name, tensor)| (name.replace("language_model.", ""), tensor.clone()));
    gemma4(&Given { config: given.config["text_config"].clone(), tensors: tensors.collect() })
}

/// As [`gemma4_text`], with weights that undo what candle does differently: it adds 1 to the weights of norms, divides
/// scores by the square root of the heads' size, and does not multiply the results of layers by their scalars.
pub(super) fn gemma4_undone(given: &Given) -> candle_core::Result<Forward> {
    let mut tensors = given.tensors.clone();
    let mut scale = 1.0;
    for layer in 0..given.config["text_config"]["num_hidden_layers"].as_u64().unwrap() {
        let name = |part: &str| format!("model.language_model.layers.{layer}.{part}");
        for part in ["post_attention_layernorm.weight", "post_feedforward_layernorm.weight"] {
            let weight = (&tensors[&name(part)].to_dtype(DType::F32)? / scale)?;
            tensors.insert(name(part), weight);
        }
        let query = tensors[&name("self_attn.q_norm.weight")].to_dtype(DType::F32)?;
        let query = (&query * (query.elem_count() as f64).sqrt())?;
        tensors.insert(name("self_attn.q_norm.weight"), query);
        let scalar = tensors[&name("layer_scalar")].to_dtype(DType::F32)?.to_vec1::<f32>()?[0];
        scale *= f64::from(scalar);
    }
    for (_, weight) in tensors.iter_mut().filter(|(name, _)| name.ends_with("norm.weight")) {
        *weight = (weight.to_dtype(DType::F32)? - 1.0)?;
    }
    gemma4_text(&Given { config: given.config.clone(), tensors })
}

pub(super) fn phi(given: &Given) -> candle_core::Result<Forward> {
    let mut model = models::phi::Model::new(&given.config()?, given.weights())?;
    Ok(Box::new(move |tokens, _| model.forward(tokens)))
}

pub(super) fn falcon(given: &Given) -> candle_core::Result<Forward> {
    let mut model = models::falcon::Falcon::load(given.weights(), given.config()?)?;
    Ok(Box::new(move |tokens, _| model.forward(tokens)))
}

pub(super) fn bigcode(given: &Given) -> candle_core::Result<Forward> {
    let number = |key: &str| given.config[key].as_u64().map(|number| number as usize);
    let config = models::bigcode::Config {
        vocab_size: number("vocab_size").unwrap(),
        max_position_embeddings: number("n_positions").unwrap(),
        num_hidden_layers: number("n_layer").unwrap(),
        hidden_size: number("n_embd").unwrap(),
        layer_norm_epsilon: given.config["layer_norm_epsilon"].as_f64().unwrap(),
        n_inner: number("n_inner"),
        num_attention_heads: number("n_head").unwrap(),
        multi_query: given.config["multi_query"].as_bool().unwrap(),
        use_cache: true,
    };
    let mut model = models::bigcode::GPTBigCode::load(given.weights(), config)?;
    Ok(Box::new(move |tokens, position| model.forward(tokens, position)))
}

pub(super) fn qwen3_vl(given: &Given) -> candle_core::Result<Forward> {
    let model = models::qwen3_vl::Qwen3VLModel::new(&given.config()?, given.weights())?;
    Ok(Box::new(move |tokens, position| {
        model.forward(tokens, None, None, None, None, vec![tokens.dim(1)?], vec![], vec![], &[position])
    }))
}

/// Reads prompts token by token, where candle reads longer prompts wrongly or not at all.
fn by_token(mut forward: Forward) -> candle_core::Result<Forward> {
    Ok(Box::new(move |tokens, position| {
        let (_, length) = tokens.dims2()?;
        let mut token = |index| forward(&tokens.narrow(1, index, 1)?, position + index);
        (1..length).try_fold(token(0)?, |_, index| token(index))
    }))
}

pub(super) fn gemma3_by_token(given: &Given) -> candle_core::Result<Forward> {
    by_token(gemma3(given)?)
}

pub(super) fn qwen3_vl_by_token(given: &Given) -> candle_core::Result<Forward> {
    by_token(qwen3_vl(given)?)
}

#[test]
fn candle_agrees_as_recorded() {
    let mut complaints = Vec::new();
    for row in ROWS {
        let folder = tempfile::tempdir().unwrap();
        let given = prepare(row, folder.path());
        let result = compare(folder.path(), &row.folder(), || (row.load)(&given));
        let Some(complaint) = complaint(row.expected, &result) else { continue };
        let Row { module, fixture, both, candle, .. } = row;
        complaints.push(format!("{module} of {fixture}, {both}, {candle}: {complaint}"));
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
