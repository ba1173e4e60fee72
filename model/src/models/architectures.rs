//! The table of architectures: the name in config.json and the builder of each.
//!
//! Entry point: [`ARCHITECTURES`].

use numbers::FloatType;

use super::{
    Config, Model, ModelError, afmoe, apertus, bloom, cohere, cwm, deepseek, dots1, ernie, ernie4_5_moe, exaone_moe,
    exaone4, falcon, gemma, gemma2, gemma3, gemma4, glm, glm4_moe, gpt_neo, gpt_neox, gpt_oss, gpt2, gptj, granite,
    helium, hunyuan, hunyuan_moe, hy_v3, internlm3, llama, llama4, mellum, minicpm3, minimax_m2, mistral, mixtral,
    nanochat, nemotron, olmo, olmo2, olmoe, opt, persimmon, phi, phi3, qwen_moe, qwen2, qwen3, seed_oss, smollm3,
    stablelm, starcoder2, vaultgemma,
};

/// Builds one rank's part of the model that a config describes. The arguments are the config, the type of the weights
/// and the number of ranks.
pub(super) type Build = fn(&Config, FloatType, usize) -> Result<Model, ModelError>;

/// Pairs of a Hugging Face architecture and its builder, in the order of names.
pub(super) const ARCHITECTURES: &[(&str, Build)] = &[
    ("AfmoeForCausalLM", afmoe::build),
    ("ApertusForCausalLM", apertus::build),
    ("ArceeForCausalLM", nemotron::build_arcee),
    ("BioGptForCausalLM", opt::build_biogpt),
    ("BloomForCausalLM", bloom::build),
    ("CodeGenForCausalLM", gptj::build_codegen),
    ("Cohere2ForCausalLM", cohere::build_cohere2),
    ("CohereForCausalLM", cohere::build),
    ("CwmForCausalLM", cwm::build),
    ("DeepseekV2ForCausalLM", deepseek::build_v2),
    ("DeepseekV3ForCausalLM", deepseek::build_v3),
    ("Dots1ForCausalLM", dots1::build),
    ("Ernie4_5ForCausalLM", ernie::build),
    ("Ernie4_5_MoeForCausalLM", ernie4_5_moe::build),
    ("Exaone4ForCausalLM", exaone4::build),
    ("ExaoneMoEForCausalLM", exaone_moe::build),
    ("ExaoneMoeForCausalLM", exaone_moe::build),
    ("FalconForCausalLM", falcon::build),
    ("FlexOlmoForCausalLM", olmoe::build_flex),
    ("GPT2LMHeadModel", gpt2::build),
    ("GPTBigCodeForCausalLM", gpt2::build_bigcode),
    ("GPTJForCausalLM", gptj::build),
    ("GPTNeoForCausalLM", gpt_neo::build),
    ("GPTNeoXForCausalLM", gpt_neox::build),
    ("Gemma2ForCausalLM", gemma2::build),
    ("Gemma3ForCausalLM", gemma3::build),
    ("Gemma3ForConditionalGeneration", gemma3::build),
    ("Gemma4ForCausalLM", gemma4::build),
    ("Gemma4ForConditionalGeneration", gemma4::build),
    ("Gemma4UnifiedForConditionalGeneration", gemma4::build_unified),
    ("GemmaForCausalLM", gemma::build),
    ("Glm4ForCausalLM", glm::build_glm4),
    ("Glm4MoeForCausalLM", glm4_moe::build),
    ("Glm4MoeLiteForCausalLM", deepseek::build_glm),
    ("GlmForCausalLM", glm::build),
    ("GptOssForCausalLM", gpt_oss::build),
    ("GraniteForCausalLM", granite::build),
    ("GraniteMoeForCausalLM", granite::build_moe),
    ("GraniteMoeSWAForCausalLM", granite::build_moe_swa),
    ("GraniteMoeSharedForCausalLM", granite::build_moe),
    ("GraniteSWAForCausalLM", granite::build_swa),
    ("HYV3ForCausalLM", hy_v3::build),
    ("HeliumForCausalLM", helium::build),
    ("HunYuanDenseV1ForCausalLM", hunyuan::build),
    ("HunYuanMoEV1ForCausalLM", hunyuan_moe::build),
    ("HyperCLOVAXForCausalLM", granite::build_hyperclovax),
    ("IQuestCoderForCausalLM", llama::build),
    ("InternLM3ForCausalLM", internlm3::build),
    ("Jais2ForCausalLM", nemotron::build_jais2),
    ("KimiK25ForConditionalGeneration", deepseek::build_v3),
    ("Kimi_K25ForConditionalGeneration", deepseek::build_v3),
    ("Llama4ForCausalLM", llama4::build),
    ("Llama4ForConditionalGeneration", llama4::build),
    ("LlamaForCausalLM", llama::build),
    ("MellumForCausalLM", mellum::build),
    ("MiniCPM3ForCausalLM", minicpm3::build),
    ("MiniMaxM2ForCausalLM", minimax_m2::build),
    ("Ministral3ForCausalLM", mistral::build_ministral3),
    ("MinistralForCausalLM", mistral::build),
    ("Mistral3ForConditionalGeneration", mistral::build_text),
    ("MistralForCausalLM", mistral::build),
    ("MixtralForCausalLM", mixtral::build),
    ("MptForCausalLM", bloom::build_mpt),
    ("NanoChatForCausalLM", nanochat::build),
    ("NemotronForCausalLM", nemotron::build),
    ("OPTForCausalLM", opt::build),
    ("Olmo2ForCausalLM", olmo2::build),
    ("Olmo3ForCausalLM", olmo2::build_olmo3),
    ("OlmoForCausalLM", olmo::build),
    ("OlmoeForCausalLM", olmoe::build),
    ("PersimmonForCausalLM", persimmon::build),
    ("Phi3ForCausalLM", phi3::build),
    ("PhiForCausalLM", phi::build),
    ("Qwen2ForCausalLM", qwen2::build),
    ("Qwen2MoeForCausalLM", qwen_moe::build_qwen2),
    ("Qwen2VLForConditionalGeneration", qwen2::build),
    ("Qwen2_5_VLForConditionalGeneration", qwen2::build),
    ("Qwen3ForCausalLM", qwen3::build),
    ("Qwen3MoeForCausalLM", qwen_moe::build_qwen3),
    ("Qwen3VLForConditionalGeneration", qwen3::build_vl),
    ("Qwen3VLMoeForConditionalGeneration", qwen_moe::build_qwen3_vl),
    ("SeedOssForCausalLM", seed_oss::build),
    ("SmolLM3ForCausalLM", smollm3::build),
    ("SolarOpenForCausalLM", glm4_moe::build_solar),
    ("StableLmForCausalLM", stablelm::build),
    ("Starcoder2ForCausalLM", starcoder2::build),
    ("VaultGemmaForCausalLM", vaultgemma::build),
    ("YoutuForCausalLM", deepseek::build_youtu),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_once() {
        assert!(ARCHITECTURES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
