"""Measures what quantization costs: compares the log-probabilities of texts with those of the original model, for each
type of weights and of the KV cache.

    python3 bench/quality.py MODEL_ID TEXTS [--schemes "--quantize int8" "--quantize int4" "--kv-cache-dtype int8"]

TEXTS has a JSON string per line, like the file for the load client's --prompts. Needs a release build of the launcher,
and no Python packages. Each scheme is served in turn and returns the log-probability of every token of every text
(`decoder_input_details`).
"""

import argparse
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).parent.parent
LAUNCHER = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "text-generation-launcher"
START_SECONDS = 300


def url_of(log, process):
    """Waits until the server is ready and returns its URL."""
    for _ in range(10 * START_SECONDS):
        for line in log.read_text().splitlines():
            if '"ready"' in line:
                return "http://" + line.split("http://")[1].split('"')[0].rstrip("/")
        assert process.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
        time.sleep(0.1)
    raise TimeoutError(f"the server was not ready within {START_SECONDS} s")


def logprobs_of(url, text):
    parameters = {"max_new_tokens": 1, "details": True, "decoder_input_details": True}
    body = json.dumps({"inputs": text, "parameters": parameters}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        tokens = json.load(response)["details"]["prefill"]
    # The first token has no log-probability, because no token precedes it.
    return [token["logprob"] for token in tokens if token["logprob"] is not None]


def logprobs(model_id, texts, flags):
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        command = [LAUNCHER, "--model-id", model_id, "--hostname", "127.0.0.1", "--port", "0", "--json-output", *flags]
        with log.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
            try:
                url = url_of(log, process)
                return [logprob for text in texts for logprob in logprobs_of(url, text)]
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model_id")
    parser.add_argument("texts", type=pathlib.Path)
    parser.add_argument("--schemes", nargs="*", default=["--quantize int8", "--quantize int4", "--kv-cache-dtype int8"])
    args = parser.parse_args()
    texts = [json.loads(line) for line in args.texts.read_text().splitlines() if line.strip()]
    exact = logprobs(args.model_id, texts, [])
    spread = statistics.pstdev(exact)
    print(f"{len(exact)} tokens of {len(texts)} texts, perplexity {math.exp(-statistics.fmean(exact)):.4f}\n", flush=True)
    print("| | perplexity | root mean square error of the log-probabilities | relative to their standard deviation |\n|---|---|---|---|", flush=True)
    for scheme in args.schemes:
        rounded = logprobs(args.model_id, texts, scheme.split())
        change = math.exp(statistics.fmean(exact) - statistics.fmean(rounded)) - 1
        error = math.sqrt(statistics.fmean((a - b) ** 2 for a, b in zip(exact, rounded, strict=True)))
        print(f"| `{scheme}` | {100 * change:+.2f} % | {error:.4f} | {100 * error / spread:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
