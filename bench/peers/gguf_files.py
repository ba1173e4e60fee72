"""Converts a Llama checkpoint to GGUF files, which llama.cpp, ik_llama.cpp and candle read.

    python3 bench/peers/gguf_files.py FOLDER [--types bf16,q8_0,q4_k_m]

Needs llama-cpp-python, gguf and torch. The files are written beside the checkpoint; existing files are kept.
"""

import argparse
import ctypes
import json
import pathlib

import gguf
import llama_cpp
import torch
from safetensors import safe_open

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TYPES = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}


def name_of(tensor):
    plain = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    if tensor in plain:
        return plain[tensor]
    _, _, layer, rest = tensor.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def convert(folder, path):
    """Converts the checkpoint to a bf16 file. The dimensions that RoPE rotates keep their order, which differs from
    GGUF's, because speed does not depend on it. Each word of the checkpoint's vocabulary is one token."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    special = list(words)[:3]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([word if word in special else f"\u0120{word}" for word in words])
    writer.add_token_types([gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words])
    # The format requires a merge, but no merge is used, because each word of the vocabulary is one token.
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(words["<s>"])
    writer.add_eos_token_id(words["</s>"])
    writer.add_add_bos_token(False)
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        for tensor in tensors.keys():
            values = tensors.get_tensor(tensor)
            if values.dim() == 1:
                writer.add_tensor(name_of(tensor), values.float().numpy())
            else:
                bits = values.view(torch.uint8).numpy()
                writer.add_tensor(name_of(tensor), bits, raw_shape=bits.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source, path, kind):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = TYPES[kind]
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params))
    assert code == 0, f"llama.cpp cannot quantize to {kind}: {code}"


def write(folder, kind):
    path = folder / f"{kind}.gguf"
    if path.exists():
        return
    unfinished = folder / f"{kind}.unfinished"
    if kind == "bf16":
        convert(folder, unfinished)
    else:
        write(folder, "bf16")
        quantize(folder / "bf16.gguf", unfinished, kind)
    unfinished.rename(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--types", default="bf16,q8_0,q4_k_m")
    args = parser.parse_args()
    for kind in args.types.split(","):
        write(args.folder, kind)


if __name__ == "__main__":
    main()
