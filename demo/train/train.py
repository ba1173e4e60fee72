"""Trains the demo model from nothing and writes it in Hugging Face layout.

Steps: train a byte-level BPE tokenizer on the generated corpus, pack the
corpus into windows, train a small Llama with AdamW (bfloat16 autocast, cosine
schedule, the last tenth of the steps on 1024-token windows) and export
config.json, generation_config.json, tokenizer files and bfloat16 weights.
The export happens at every checkpoint, so a run may be cut short.

    python train.py --out OUTPUT_FOLDER [--steps N] [--seed N]
"""
import argparse
import json
import math
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn

import corpus
from words import OPPOSITE

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, CONTEXT = 1536, 192, 6, 6, 2, 32, 512, 1024
THETA, EPS = 10000.0, 1e-5
SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]
BOS, EOS, PAD, SYSTEM, USER, ASSISTANT = range(6)
ROLE = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
PROMPT_WEIGHT = 0.1  # loss weight of what the user or the system says
ANSWER_LENGTH = 30   # a longer assistant turn is a story
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ '<|system|>' + message['content'] | trim }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>' + message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] | trim + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


# --------------------------------------------------------------------------- data
def train_tokenizer(seed):
    """Byte-level BPE with all 256 bytes in its alphabet and every digit a token of its own."""
    rng = random.Random(seed)
    docs = (corpus.make_document(rng) for _ in range(20000))
    texts = (t for d in docs for t in ([d] if isinstance(d, str) else [text for _, text in d]))
    words = [w for pair in OPPOSITE.items() for w in pair]
    texts = list(texts) + [f" {w} {w}." for w in words] * 100  # rare words, one token each where possible
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
                                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", BOS)])])
    assert tok.get_vocab_size() == VOCAB
    return tok


def encode(tok, docs, story_weight):
    """(ids, loss weights) of each document, as the chat template lays it out."""
    texts = [t for d in docs for t in ([d] if isinstance(d, str) else [text for _, text in d])]
    ids = iter(e.ids for e in tok.encode_batch(texts, add_special_tokens=False))
    for doc in docs:
        out, weights = [BOS], [0.0]
        for role, _ in [("plain", doc)] if isinstance(doc, str) else doc:
            part = next(ids)
            told = role == "plain" or len(part) > ANSWER_LENGTH
            weight = PROMPT_WEIGHT if role in ("system", "user") else story_weight if told else 1.0
            if role != "plain":
                out.append(ROLE[role])
                weights.append(PROMPT_WEIGHT)
            out += part
            weights += [weight] * len(part)
            if role in ("plain", "assistant"):
                out.append(EOS)
                weights.append(1.0)
        yield out, weights


def windows(tok, rng, size, long, focus):
    """Endless (ids, weights) arrays of size + 1 tokens: whole documents, each window starting with one."""
    pool = []
    while True:
        if len(pool) < 64:
            pool += [d for d in encode(tok, [corpus.make_document(rng, long, focus) for _ in range(512)], 0.3 if focus else 1.0)
                     if len(d[0]) <= size]
        ids, weights = [], []
        while True:
            fit = next((i for i, d in enumerate(pool[:64]) if len(ids) + len(d[0]) <= size + 1), None)
            if fit is None:
                break
            doc = pool.pop(fit)
            ids += doc[0]
            weights += doc[1]
        rest = size + 1 - len(ids)
        yield np.array(ids + [PAD] * rest), np.array(weights + [0.0] * rest, dtype=np.float32)


# --------------------------------------------------------------------------- model
class Block(nn.Module):
    """One Llama layer; query/key/value and gate/up are one matrix each until the export."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, EPS), nn.RMSNorm(HIDDEN, EPS)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, -1, HEAD_DIM).transpose(1, 2).split([HEADS, KV_HEADS, KV_HEADS], 1)
        turn = lambda z: (z * cos + torch.cat((-z[..., HEAD_DIM // 2:], z[..., :HEAD_DIM // 2]), -1) * sin).to(v.dtype)
        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """The model of transformers' LlamaForCausalLM, in few lines."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPS)
        angle = torch.outer(torch.arange(CONTEXT).float(), THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.04 / (math.sqrt(2 * LAYERS) if name.endswith(("out.weight", "down.weight")) else 1))

    def forward(self, ids):
        x, t = self.embed(ids), ids.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:t], self.sin[:t])
        return F.linear(self.norm(x), self.embed.weight)


# --------------------------------------------------------------------------- export
def export(model, tok, out):
    """Writes all files of the model folder."""
    w = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.weight}
    for i, b in enumerate(model.blocks):
        q, k, v = b.qkv.weight.split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM])
        gate, up = b.gate_up.weight.chunk(2)
        for name, tensor in {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": b.out.weight,
                             "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": b.down.weight,
                             "input_layernorm": b.norm1.weight, "post_attention_layernorm": b.norm2.weight}.items():
            w[f"model.layers.{i}.{name}.weight"] = tensor
    out.mkdir(parents=True, exist_ok=True)
    save_file({k: t.detach().to(torch.bfloat16).contiguous() for k, t in w.items()}, out / "model.safetensors", {"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    tok.save(str(out / "tokenizer.json"))
    config = dict(architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=BOS, eos_token_id=EOS,
                  pad_token_id=PAD, head_dim=HEAD_DIM, hidden_act="silu", hidden_size=HIDDEN, initializer_range=0.04,
                  intermediate_size=INNER, max_position_embeddings=CONTEXT, mlp_bias=False, model_type="llama",
                  num_attention_heads=HEADS, num_hidden_layers=LAYERS, num_key_value_heads=KV_HEADS, pretraining_tp=1,
                  rms_norm_eps=EPS, rope_scaling=None, rope_theta=THETA, tie_word_embeddings=True, torch_dtype="bfloat16",
                  use_cache=True, vocab_size=VOCAB)
    tokens = dict(bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>")
    files = {"config.json": config,
             "generation_config.json": dict(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, do_sample=True, temperature=0.7),
             "special_tokens_map.json": tokens,
             "tokenizer_config.json": dict(tokens, added_tokens_decoder={
                 str(i): dict(content=t, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
                 for i, t in enumerate(SPECIAL)}, chat_template=CHAT_TEMPLATE, clean_up_tokenization_spaces=False,
                 model_max_length=CONTEXT, tokenizer_class="PreTrainedTokenizerFast")}
    for name, data in files.items():
        (out / name).write_text(json.dumps(data, indent=2) + "\n")


def load(folder):
    """The model of an exported folder."""
    model, w = Llama(), load_file(folder / "model.safetensors")
    state = {"embed.weight": w["model.embed_tokens.weight"], "norm.weight": w["model.norm.weight"]}
    for i in range(LAYERS):
        get = lambda *names: torch.cat([w[f"model.layers.{i}.{n}.weight"] for n in names])
        state |= {f"blocks.{i}.{k}.weight": v for k, v in {
            "qkv": get("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "out": get("self_attn.o_proj"),
            "gate_up": get("mlp.gate_proj", "mlp.up_proj"), "down": get("mlp.down_proj"),
            "norm1": get("input_layernorm"), "norm2": get("post_attention_layernorm")}.items()}
    model.load_state_dict(state, strict=False)
    return model


# --------------------------------------------------------------------------- training
def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--export-every", type=int, default=250)
    parser.add_argument("--stop-after", type=int, help="end before the schedule does")
    parser.add_argument("--long-share", type=float, default=0.1, help="share of the steps, the last ones, on 1024-token windows")
    parser.add_argument("--continue-from", type=pathlib.Path, help="an exported folder to start from")
    parser.add_argument("--focus", action="store_true", help="more questions about stories, less weight on telling them")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    if args.continue_from:
        tok = Tokenizer.from_file(str(args.continue_from / "tokenizer.json"))
        model = load(args.continue_from)
    else:
        tok, model = train_tokenizer(args.seed), Llama()
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
                            lr=args.lr, betas=(0.9, 0.95), fused=True)
    rng = random.Random(args.seed + 1)
    first_long = args.steps - int(args.steps * args.long_share)
    data = windows(tok, rng, 512, False, args.focus)
    size, warm, start, seen, total = 512, min(150, args.steps // 10), time.time(), 0, 0.0
    last = args.stop_after or args.steps
    for step in range(last):
        if step == first_long:
            size, data = CONTEXT, windows(tok, rng, CONTEXT, True, args.focus)
        rate = min(1.0, (step + 1) / warm) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))
        for group in opt.param_groups:
            group["lr"] = args.lr * rate
        ids, weights = (torch.from_numpy(np.stack(a)) for a in zip(*(next(data) for _ in range(args.batch_tokens // size))))
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids[:, :-1])
        each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weight = weights[:, 1:].flatten()
        loss = (each * weight).sum() / weight.sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        seen, total = seen + int((ids != PAD).sum()), total + loss.item()
        if (step + 1) % 25 == 0:
            spent = time.time() - start
            print(f"step {step + 1} loss {total / 25:.4f} tokens {seen} seconds {spent:.0f} ({seen / spent:.0f} tokens/s)", flush=True)
            total = 0.0
        if (step + 1) % args.export_every == 0 or step + 1 == last:
            export(model, tok, args.out)


if __name__ == "__main__":
    main()
