"""Makes checkpoints with random weights that have the tensor shapes of published models, but only some of their layers,
and GGUF files of them. Weights are bf16; the experts of gpt-oss are MXFP4, as published.

    python3 bench/peers/make_real_shapes.py FOLDER [NAME ..] [--converter vendor/llama.cpp] [--types bf16,q4_k_m,mxfp4]

NAME is one of gpt-oss-20b, glm-4.7-flash, gemma-4-e4b and qwen3-30b-a3b. Needs torch and transformers. GGUF files also
need llama-cpp-python, gguf and llama.cpp's converter, which the source package of llama-cpp-python contains. They have no
tokenizer; the benches pass token ids.
"""

import argparse
import ctypes
import functools
import json
import pathlib
import sys

import safetensors.torch
import torch
import transformers

# The class of the configuration, and the values of the published config.json that differ from its defaults.
MODELS = {
    "gpt-oss-20b": ("GptOssConfig", dict(num_hidden_layers=4, num_local_experts=32, hidden_size=2880, intermediate_size=2880,
                                         head_dim=64, num_attention_heads=64, num_key_value_heads=8, vocab_size=201088)),
    "glm-4.7-flash": ("Glm4MoeLiteConfig", dict(num_hidden_layers=6, hidden_size=2048, intermediate_size=10240, num_attention_heads=20,
                                                num_key_value_heads=20, q_lora_rank=768, kv_lora_rank=512, qk_nope_head_dim=192,
                                                qk_rope_head_dim=64, v_head_dim=256, moe_intermediate_size=1536, n_routed_experts=64,
                                                n_shared_experts=1, num_experts_per_tok=4, first_k_dense_replace=1, vocab_size=154880)),
    "gemma-4-e4b": ("Gemma4TextConfig", dict(num_hidden_layers=18, num_kv_shared_layers=6, hidden_size=2560, intermediate_size=10240,
                                             num_attention_heads=8, num_key_value_heads=2, head_dim=256, global_head_dim=512,
                                             hidden_size_per_layer_input=256, vocab_size=262144, vocab_size_per_layer_input=262144,
                                             use_double_wide_mlp=False, enable_moe_block=False)),
    "qwen3-30b-a3b": ("Qwen3MoeConfig", dict(num_hidden_layers=8, hidden_size=2048, intermediate_size=6144, num_attention_heads=32,
                                             num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
                                             moe_intermediate_size=768, vocab_size=151936, norm_topk_prob=True)),
}
# The numbers of llama.cpp's types of files.
FILE_TYPES = {"q8_0": 7, "q4_k_m": 15, "mxfp4": 38}


@functools.cache
def random_numbers():
    return (torch.randn(1 << 24, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()


def fill(values):
    """Fills a weight with random numbers, which repeat, because new ones take minutes. Elements of vectors are 1."""
    if values.dim() < 2:
        values.fill_(1)
        return
    for part in values.view(-1).split(len(random_numbers())):
        part.copy_(random_numbers()[: len(part)])


def save_mxfp4(model, folder):
    """Writes a gpt-oss checkpoint as it is published: experts in MXFP4, `[experts, outputs, inputs / 32, 16 bytes]`."""
    tensors, generator = {}, torch.Generator().manual_seed(0)
    for name, values in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inputs, outputs = values.shape
            shape = (experts, outputs, inputs // 32)
            tensors[f"{name}_blocks"] = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=generator)
            # 2^-7.
            tensors[f"{name}_scales"] = torch.full(shape, 120, dtype=torch.uint8)
        else:
            tensors[name] = torch.empty(values.shape, dtype=values.dtype)
            fill(tensors[name])
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    model.config.quantization_config = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def make(name, folder):
    """Writes the checkpoint of a model, if it is not there."""
    if (folder / "config.json").exists():
        return
    kind, sizes = MODELS[name]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**sizes), dtype=torch.bfloat16)
    if name == "gpt-oss-20b":
        save_mxfp4(model, folder)
    else:
        model.to_empty(device="cpu")
        model.tie_weights()
        for values in model.state_dict().values():
            fill(values)
        model.save_pretrained(folder)
    # The converter counts the words of Gemma's tokenizers.
    words = {str(token): token for token in range(model.config.vocab_size)}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": words}}))
    print(folder, sum(file.stat().st_size for file in folder.glob("*.safetensors")), "bytes of weights", flush=True)


def convert(folder, converter):
    """Returns the path of the bf16 file of a checkpoint, which the converter writes if it is not there."""
    path = folder.parent / f"{folder.name}.bf16.gguf"
    if path.exists():
        return path
    sys.path[:0] = [str(converter), str(converter / "gguf-py")]
    import conversion.base
    import convert_hf_to_gguf

    def set_no_vocab(self):
        self._set_vocab_none()
        # llama.cpp counts the tokens of the tokenizer, if there is one.
        self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])

    prepare = conversion.base.TextModel.prepare_metadata

    def prepare_without_tokenizer(self, *args, **named):
        type(self).set_vocab = set_no_vocab
        prepare(self, *args, **named)

    conversion.base.TextModel.prepare_metadata = prepare_without_tokenizer
    sys.argv[1:] = [str(folder), "--outtype", "bf16", "--outfile", str(path)]
    convert_hf_to_gguf.main()
    return path


def quantize(source, kind):
    import llama_cpp

    path = source.with_name(source.name.replace(".bf16.", f".{kind}."))
    if path.exists():
        return
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params))
    assert code == 0, f"{source} cannot be quantized to {kind}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", choices=[[], *MODELS], default=[])
    parser.add_argument("--converter", type=pathlib.Path)
    parser.add_argument("--types", type=lambda text: text.split(","), default=["bf16"])
    args = parser.parse_args()
    for name in args.names or MODELS:
        folder = args.folder / name
        make(name, folder)
        if args.converter:
            source = convert(folder, args.converter)
            for kind in args.types:
                if kind != "bf16":
                    quantize(source, kind)


if __name__ == "__main__":
    main()
