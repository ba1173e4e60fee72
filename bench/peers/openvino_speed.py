"""Times OpenVINO GenAI on this processor: the steps that `text-generation-launcher bench` times.

    python3 bench/peers/openvino_speed.py FOLDER [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]

Needs openvino-genai, and a folder that optimum-intel exported. Its pipeline of many requests (paged attention, continuous batches) computes
what a step computes; keys and values are int8 as by default, and activations of integer weights are rounded to int8 too.
"""

import time

import numpy
import openvino
import openvino_genai

from steps import arguments, prompt, report_decode, report_prefill


def load(args):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = max(args.prompt_tokens, 512)
    scheduler.max_num_seqs = max(args.rows)
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = 2
    properties = {"INFERENCE_NUM_THREADS": args.threads, "INFERENCE_PRECISION_HINT": args.precision}
    return openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)


class Requests:
    """Prompts that a pipeline reads together, and then continues by `num_tokens`."""

    def __init__(self, pipeline, args, rows, num_tokens):
        self.pipeline = pipeline
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_tokens, True, False
        tokens = [numpy.array([prompt(args.prompt_tokens, row)], numpy.int64) for row in range(rows)]
        self.handles = [pipeline.add_request(row, openvino.Tensor(row_tokens), config) for row, row_tokens in enumerate(tokens)]
        self.num_tokens = [0] * rows

    def step(self):
        """Seconds of a step; counts the tokens that it made."""
        start = time.perf_counter()
        self.pipeline.step()
        seconds = time.perf_counter() - start
        for row, handle in enumerate(self.handles):
            if handle.can_read():
                self.num_tokens[row] += sum(len(output.generated_ids) for output in handle.read().values())
        return seconds


def prefills(pipeline, args):
    seconds = []
    for _ in range(args.steps):
        requests = Requests(pipeline, args, 1, 1)
        seconds.append(0)
        while pipeline.has_non_finished_requests():
            seconds[-1] += requests.step()
        assert requests.num_tokens == [1], requests.num_tokens
    report_prefill(args, seconds)


def decodes(pipeline, args, rows):
    requests = Requests(pipeline, args, rows, args.steps + rows + 1)
    while min(requests.num_tokens) == 0:
        requests.step()
    seconds = []
    for _ in range(args.steps):
        before = sum(requests.num_tokens)
        seconds.append(requests.step())
        assert sum(requests.num_tokens) == before + rows, "a step did not continue every row by a token"
    report_decode(rows, seconds)
    while pipeline.has_non_finished_requests():
        pipeline.step()


def main():
    parser = arguments("folder of an exported model")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "f32"])
    args = parser.parse_args()
    print(f"openvino-genai {openvino_genai.__version__}, {args.threads} threads, {args.precision}", flush=True)
    pipeline = load(args)
    prefills(pipeline, args)
    for rows in args.rows:
        decodes(pipeline, args, rows)


if __name__ == "__main__":
    main()
