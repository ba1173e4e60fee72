"""Times transformers with torch on this CPU, for the same steps as `text-generation-launcher bench`.

    python3 bench/peers/transformers_speed.py FOLDER [--dtype bfloat16] [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]

Needs torch and transformers.
"""

import time

import torch
from transformers import AutoModelForCausalLM

from steps import arguments, prompt, report_decode, report_prefill


def prefills(model, args):
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        model(torch.tensor([prompt(args.prompt_tokens)]), use_cache=True, logits_to_keep=1)
        seconds.append(time.perf_counter() - start)
    report_prefill(args, seconds)


def decodes(model, args, rows):
    output = model(torch.tensor([prompt(args.prompt_tokens)]), use_cache=True, logits_to_keep=1)
    cache, last = output.past_key_values, output.logits[:, -1:].argmax(-1)
    cache.batch_repeat_interleave(rows)
    last = last.repeat(rows, 1)
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        output = model(last, past_key_values=cache, use_cache=True)
        last = output.logits[:, -1:].argmax(-1)
        seconds.append(time.perf_counter() - start)
    report_decode(rows, seconds)


def main():
    parser = arguments("folder of a checkpoint")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.dtype}", flush=True)
    with torch.inference_mode():
        prefills(model, args)
        for rows in args.rows:
            decodes(model, args, rows)


if __name__ == "__main__":
    main()
