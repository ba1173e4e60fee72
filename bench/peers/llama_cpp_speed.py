"""What llama.cpp makes of the shape of a checkpoint on this processor: the steps that `text-generation-launcher bench` times.

    python3 bench/peers/llama_cpp_speed.py FOLDER [--types bf16,q8_0,q4_k_m] [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]

Needs llama-cpp-python, gguf and torch; the files that it makes of the checkpoint stay beside it. Run it and ours in one
session, one after the other and again, and quote ratios.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import time

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
# Kept: llama.cpp calls it until the end.
SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)
TYPES = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}


def name_of(tensor):
    plain = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    if tensor in plain:
        return plain[tensor]
    _, _, layer, rest = tensor.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def convert(folder, path):
    """Speed does not depend on the order of rotated dimensions. Words are those of the checkpoint, each found whole."""
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
    # Not used: words that are in the vocabulary are not merged. But there has to be one.
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


def file_of(folder, kind):
    path = folder / f"{kind}.gguf"
    if path.exists():
        return path
    if kind == "bf16":
        convert(folder, path)
        return path
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = TYPES[kind]
    source = file_of(folder, "bf16")
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params))
    assert code == 0, f"llama.cpp cannot quantize to {kind}: {code}"
    return path


def report(kind, name, seconds, tokens):
    usual, best = statistics.median(seconds), min(seconds)
    print(
        f"{kind} {name} {tokens / usual:7.1f} tokens/s, best {tokens / best:7.1f};"
        f" a step {usual * 1e3:7.1f} ms, best {best * 1e3:7.1f}",
        flush=True,
    )


class Context:
    """Sequences of one model; `step` computes tokens `[(token, position, sequence)]`, with scores of those that are asked for."""

    def __init__(self, model, rows, length, threads):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = rows * length
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = rows
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(model, params)
        assert self.context, "no context"

    def step(self, tokens, wants_scores):
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, (token, position, sequence) in enumerate(tokens):
            batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position, 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wants_scores or index + 1 == len(tokens)
        start = time.perf_counter()
        code = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        llama_cpp.llama_batch_free(batch)
        assert code == 0, f"llama.cpp: {code}"
        return seconds

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def close(self):
        llama_cpp.llama_free(self.context)


def measure(kind, model, args):
    rows = [int(count) for count in args.rows.split(",")]
    prompt = [(3 + position * 7 % 100, position, 0) for position in range(args.prompt_tokens)]
    length = args.prompt_tokens + args.steps
    context = Context(model, 1, length, args.threads)
    seconds = []
    for _ in range(args.steps):
        context.clear()
        seconds.append(context.step(prompt, False))
    report(kind, f"prefill {args.prompt_tokens:<4}", seconds, args.prompt_tokens)
    context.close()
    for count in rows:
        context = Context(model, count, length + 32, args.threads)
        for sequence in range(count):
            context.step([(token, position, sequence) for token, position, _ in prompt], False)
        positions = range(args.prompt_tokens, length)
        seconds = [context.step([(5 + row, position, row) for row in range(count)], True) for position in positions]
        report(kind, f"decode  {count:<4}", seconds, count)
        context.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--types", default="bf16,q8_0,q4_k_m")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--no-repack", action="store_true", help="as on processors with AMX, where repacked weights crash it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    llama_cpp.llama_log_set(SILENT, None)
    llama_cpp.llama_backend_init()
    print(f"llama-cpp-python {llama_cpp.__version__}, {args.threads} threads", flush=True)
    for kind in args.types.split(","):
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = not args.no_repack
        model = llama_cpp.llama_model_load_from_file(str(file_of(args.folder, kind)).encode(), params)
        assert model, f"llama.cpp cannot load {kind}"
        measure(kind, model, args)
        llama_cpp.llama_model_free(model)


if __name__ == "__main__":
    main()
