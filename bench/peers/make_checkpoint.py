"""Makes a checkpoint with random bf16 weights, the tensor shapes of a published model, and a tokenizer of invented
words.

    python3 bench/peers/make_checkpoint.py FOLDER [--shape llama-3.2-1b|smollm2-135m]

Speed depends only on shapes and types, so random weights give the same measurements as trained weights, and everybody
can make the same checkpoint. Needs no Python packages. Embedding and output head share a weight. Every word of a prompt
is one token.
"""

import argparse
import json
import os
import pathlib
import random
import struct

# The sizes in the config.json of each published model.
SHAPES = {
    "llama-3.2-1b": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072),
    "smollm2-135m": dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                         num_attention_heads=9, num_key_value_heads=3, head_dim=64, max_position_embeddings=8192),
}
# For each random byte, the upper byte of a positive or negative bf16 number. Whatever the number's lower byte is, its
# absolute value is from 1/128 to 1/32.
UPPER_BYTES = bytes((0x3C, 0xBC)[byte & 1] for byte in range(256))
PIECE = 1 << 24


def config(sizes):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **sizes,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def shapes(sizes):
    """Returns the name and the shape of every tensor. Norms have one dimension."""
    hidden, intermediate = sizes["hidden_size"], sizes["intermediate_size"]
    queries, keys = (sizes[heads] * sizes["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", (sizes["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(sizes["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (hidden,)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
        yield f"{name}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{name}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{name}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{name}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{name}.mlp.gate_proj.weight", (intermediate, hidden)
        yield f"{name}.mlp.up_proj.weight", (intermediate, hidden)
        yield f"{name}.mlp.down_proj.weight", (hidden, intermediate)


def random_weights(num_bytes, generator):
    """Returns `num_bytes` bytes of bf16 numbers with random signs and values."""
    pair = bytearray(num_bytes)
    pair[0::2] = generator.randbytes(num_bytes // 2)
    pair[1::2] = generator.randbytes(num_bytes // 2).translate(UPPER_BYTES)
    return pair


def write_weights(path, sizes):
    tensors, end = {}, 0
    for name, shape in shapes(sizes):
        start = end
        end += 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        tensors[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    generator = random.Random(0)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for tensor in tensors.values():
            start, end = tensor["data_offsets"]
            if len(tensor["shape"]) == 1:
                file.write(struct.pack("<H", 0x3F80) * ((end - start) // 2))
                continue
            for first in range(start, end, PIECE):
                file.write(random_weights(min(PIECE, end - first), generator))


def word_of(token):
    """Returns the word of a token, which has four letters. All words differ, and a tokenizer never splits them."""
    return "".join(chr(ord("a") + token // 26**place % 26) for place in (3, 2, 1, 0))


def tokenizer(vocab_size):
    words = {"<s>": 0, "</s>": 1, "<unk>": 2} | {word_of(token): token for token in range(3, vocab_size)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": word, "content": text, **special} for text, word in list(words.items())[:3]],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    args = parser.parse_args()
    sizes = SHAPES[args.shape]
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "config.json").write_text(json.dumps(config(sizes), indent=1))
    (args.folder / "tokenizer.json").write_text(json.dumps(tokenizer(sizes["vocab_size"])))
    (args.folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "bos_token": "<s>"}))
    write_weights(args.folder / "model.safetensors", sizes)
    print(args.folder, os.path.getsize(args.folder / "model.safetensors"), "bytes of weights")


if __name__ == "__main__":
    main()
