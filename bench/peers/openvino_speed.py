"""Times OpenVINO GenAI on this CPU, for the same steps as `text-generation-launcher bench`.

    python3 bench/peers/openvino_speed.py FOLDER [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]

Needs openvino-genai, and a folder that optimum-intel exported. A step is a step of GenAI's pipeline for many requests
(paged attention, continuous batching). Keys and values are int8, which is the default. With integer weights,
activations are quantized to int8.
"""

import numpy
import openvino
import openvino_genai

from steps import arguments, measure_engine, prompt


def load(args):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = max(args.prompt_tokens, 512)
    scheduler.max_num_seqs = max(args.rows)
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = 2
    properties = {"INFERENCE_NUM_THREADS": args.threads, "INFERENCE_PRECISION_HINT": args.precision}
    return openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)


class Engine:
    """The pipeline, and the requests that were sent last with the number of their generated tokens."""

    def __init__(self, args):
        self.args, self.pipeline, self.handles, self.made = args, load(args), [], []

    def ask(self, rows, num_tokens):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_tokens, True, False
        tokens = [numpy.array([prompt(self.args.prompt_tokens, row)], numpy.int64) for row in range(rows)]
        self.handles = [self.pipeline.add_request(row, openvino.Tensor(row_tokens), config) for row, row_tokens in enumerate(tokens)]
        self.made = [0] * rows

    def step(self):
        self.pipeline.step()

    def is_busy(self):
        return self.pipeline.has_non_finished_requests()

    def num_tokens(self):
        for row, handle in enumerate(self.handles):
            if handle.can_read():
                self.made[row] += sum(len(output.generated_ids) for output in handle.read().values())
        return self.made


def main():
    parser = arguments("folder of an exported model")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "f32"])
    args = parser.parse_args()
    print(f"openvino-genai {openvino_genai.__version__}, {args.threads} threads, {args.precision}", flush=True)
    measure_engine(args, Engine(args))


if __name__ == "__main__":
    main()
