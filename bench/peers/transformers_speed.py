"""What transformers makes of a checkpoint on this processor: the steps that `text-generation-launcher bench` times.

    python3 bench/peers/transformers_speed.py FOLDER [--dtype bfloat16] [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]

Needs torch and transformers. Run both in one session, one after the other and again, and quote ratios.
"""

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM


def report(name, seconds, tokens):
    usual, best = statistics.median(seconds), min(seconds)
    print(
        f"{name} {tokens / usual:7.1f} tokens/s, best {tokens / best:7.1f};"
        f" a step {usual * 1e3:7.1f} ms, best {best * 1e3:7.1f}",
        flush=True,
    )


def prompts(rows, length):
    return torch.tensor([[3 + (position * 7 + row * 31) % 100 for position in range(length)] for row in range(rows)])


def prefills(model, args):
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        model(prompts(1, args.prompt_tokens), use_cache=True, logits_to_keep=1)
        seconds.append(time.perf_counter() - start)
    report(f"prefill {args.prompt_tokens:<4}", seconds, args.prompt_tokens)


def decodes(model, args, rows):
    cache, last = None, None
    output = model(prompts(1, args.prompt_tokens), use_cache=True, logits_to_keep=1)
    cache, last = output.past_key_values, output.logits[:, -1:].argmax(-1)
    cache.batch_repeat_interleave(rows)
    last = last.repeat(rows, 1)
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        output = model(last, past_key_values=cache, use_cache=True)
        last = output.logits[:, -1:].argmax(-1)
        seconds.append(time.perf_counter() - start)
    report(f"decode  {rows:<4}", seconds, rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=getattr(torch, args.dtype)).eval()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.dtype}", flush=True)
    with torch.inference_mode():
        prefills(model, args)
        for rows in args.rows.split(","):
            decodes(model, args, int(rows))


if __name__ == "__main__":
    main()
