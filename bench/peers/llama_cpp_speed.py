"""Times llama.cpp, or its fork ik_llama.cpp, on this CPU, for the same steps as `text-generation-launcher bench`.

    python3 bench/peers/llama_cpp_speed.py FILE.gguf [--fork] [--prompt-tokens 512] [--rows 1,8,32] [--steps 16]

Needs llama-cpp-python or ik-llama-cpp-python; gguf_files.py converts a checkpoint. The library in ik-llama-cpp-python
uses only AVX2 instructions; the environment variable IK_LLAMA_CPP_LIB_PATH names a library that was built for this CPU.
"""

import importlib
import time

from steps import arguments, prompt, report_decode, report_prefill

# The maximum number of tokens that one call computes.
BATCH = 512


class Library:
    """llama.cpp's C interface with the names of llama-cpp-python."""

    def __init__(self, args):
        if args.fork:
            self.c = importlib.import_module("ik_llama_cpp._ctypes_api")
            self.name = "ik_llama.cpp"
            self.free_model, self.clear_sequences = self.c.llama_free_model, self.c.llama_kv_cache_clear
            # The package does not bind the function `llama_synchronize`, which is not needed on a CPU.
            self.synchronize = lambda context: None
        else:
            self.c = importlib.import_module("llama_cpp")
            self.name = f"llama-cpp-python {self.c.__version__}"
            self.free_model, self.synchronize = self.c.llama_model_free, self.c.llama_synchronize
            self.clear_sequences = lambda context: self.c.llama_memory_clear(self.c.llama_get_memory(context), True)
            # The callback is stored, because llama.cpp calls it until the process ends.
            self.silent = self.c.llama_log_callback(lambda level, text, data: None)
            self.c.llama_log_set(self.silent, None)
        self.c.llama_backend_init()

    def load(self, args):
        params = self.c.llama_model_default_params()
        if args.fork:
            params.repack_tensors = not args.no_repack
        else:
            params.use_extra_bufts = not args.no_repack
        model = self.c.llama_model_load_from_file(args.model.encode(), params)
        assert model, f"{self.name} cannot load {args.model}"
        return model


class Context:
    """Sequences of one model. `step` computes tokens `[(token, position, sequence)]`, and logits of the last token or of all."""

    def __init__(self, library, model, rows, length, args):
        self.library = library
        params = library.c.llama_context_default_params()
        params.n_ctx = rows * length
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = rows
        params.n_threads = params.n_threads_batch = args.threads
        if args.fork:
            # The fork's kernel aborts the process ("S > 0") if a batch has several sequences.
            params.flash_attn = False
        self.context = library.c.llama_init_from_model(model, params)
        assert self.context, f"{library.name} cannot create a context of {rows} rows of {length} tokens"

    def step(self, tokens, wants_scores):
        c = self.library.c
        batch = c.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, (token, position, sequence) in enumerate(tokens):
            batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position, 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wants_scores or index + 1 == len(tokens)
        start = time.perf_counter()
        code = c.llama_decode(self.context, batch)
        self.library.synchronize(self.context)
        seconds = time.perf_counter() - start
        c.llama_batch_free(batch)
        assert code == 0, f"{self.library.name} failed to compute a step: {code}"
        return seconds

    def read(self, tokens, row):
        """Computes a prompt, BATCH tokens at a time, and returns the seconds that this took."""
        rows = [(token, position, row) for position, token in enumerate(tokens)]
        return sum(self.step(rows[start : start + BATCH], False) for start in range(0, len(rows), BATCH))

    def clear(self):
        self.library.clear_sequences(self.context)

    def close(self):
        self.library.c.llama_free(self.context)


def measure(library, model, args):
    tokens = prompt(args.prompt_tokens)
    length = args.prompt_tokens + args.steps
    context = Context(library, model, 1, length, args)
    seconds = []
    for _ in range(args.steps):
        context.clear()
        seconds.append(context.read(tokens, 0))
    report_prefill(args, seconds)
    context.close()
    for count in args.rows:
        context = Context(library, model, count, length + 32, args)
        for row in range(count):
            context.read(tokens, row)
        positions = range(args.prompt_tokens, length)
        seconds = [context.step([(5 + row, position, row) for row in range(count)], True) for position in positions]
        report_decode(count, seconds)
        context.close()


def main():
    parser = arguments("GGUF file")
    parser.add_argument("--fork", action="store_true", help="ik_llama.cpp")
    parser.add_argument("--no-repack", action="store_true", help="do not repack weights, for processors with AMX, on which llama.cpp crashes with repacked weights")
    args = parser.parse_args()
    library = Library(args)
    print(f"{library.name}, {args.threads} threads", flush=True)
    model = library.load(args)
    measure(library, model, args)
    library.free_model(model)


if __name__ == "__main__":
    main()
