"""Measures this server beside transformers (torch) and llama.cpp: same machine, same weights, same threads, one after the other.

    python3 bench/peers/run.py [--shape llama-3.2-1b] [--rounds 3] [--report FILE] [--skip-http] [--only hilo,torch,llama.cpp]

Needs cargo, a C++ compiler and CMake; everything else goes to `--folder` once: peers from PyPI in an environment of their own, the
checkpoint of `make_checkpoint.py`, and the files that llama.cpp makes of it. The report has the machine, the versions, medians of all
rounds, ratios to the best peer of the same format, and every line that was printed. Nothing else should run meanwhile.
"""

import argparse
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

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
# Prompts for prefill and a single row; and for many rows, whose prompts would take minutes to read.
SETTINGS = [dict(prompt=512, rows="1", steps=8), dict(prompt=32, rows="8,32", steps=16)]
FORMATS = {"bf16": (None, "bf16"), "int8": ("int8", "q8_0"), "int4": ("int4", "q4_k_m")}
LINE = re.compile(r"(prefill|decode) +(\d+) +([\d.]+) tokens/s")
STREAMS, STREAM_PROMPT, STREAM_TOKENS = 32, 32, 32
START_SECONDS = 600


def sh(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, text=True, **options)


def prepare(args):
    """Environment, builds and checkpoint; returns the Python of the environment and the checkpoint."""
    environment = args.folder / "environment"
    python = environment / "bin" / "python"
    if not (environment / "done").exists():
        sh(sys.executable, "-m", "venv", environment)
        sh(python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt")
        (environment / "done").touch()
    sh("cargo", "build", "--release", "--locked", "-p", "launcher", "-p", "text-generation-bench", cwd=ROOT)
    checkpoint = args.folder / args.shape
    if not (checkpoint / "model.safetensors").exists():
        sh(sys.executable, HERE / "make_checkpoint.py", checkpoint, "--shape", args.shape)
    return python, checkpoint


def binary(name):
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / name


def contenders(args, python, checkpoint):
    """Who runs in process: (name, format, command)."""
    for name, (quantize, gguf) in FORMATS.items():
        flags = ["--quantize", quantize] if quantize else []
        threads = ["--threads", args.threads]
        yield "hilo", name, [binary("text-generation-launcher"), "bench", "--model-id", checkpoint, *flags, *threads]
        if name == "bf16":
            yield "torch", name, [python, HERE / "transformers_speed.py", checkpoint, *threads]
        repack = ["--no-repack"] if args.no_repack else []
        command = [python, HERE / "llama_cpp_speed.py", checkpoint, "--types", gguf, *threads, *repack]
        yield "llama.cpp", name, command


def in_process(args, python, checkpoint, raw):
    """Tokens per second of every round, by (format, measurement) and name."""
    found = defaultdict(lambda: defaultdict(list))
    for index in range(args.rounds):
        for name, kind, command in contenders(args, python, checkpoint):
            if name not in args.only:
                continue
            for setting in SETTINGS:
                flags = ["--prompt-tokens", setting["prompt"], "--rows", setting["rows"], "--steps", setting["steps"]]
                output = sh(*command, *flags, stdout=subprocess.PIPE).stdout
                raw.append(f"# round {index + 1}, {name} {kind}, prompts of {setting['prompt']}\n{output}")
                for what, count, rate in LINE.findall(output):
                    # Short prompts are there for what follows them.
                    if what == "decode" or setting is SETTINGS[0]:
                        found[kind, f"{what} {count}"][name].append(float(rate))
                print(name, kind, setting, LINE.findall(output), flush=True)
    return found


def servers(args, python, checkpoint):
    """Who serves bf16: (whose it is, name, command without the port, path that answers when it is ready, flags of the load client)."""
    completions = ["--api", "completions", "--model"]
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
        [python.parent / "transformers", "serve", checkpoint, "--continuous-batching", "--dtype", "bfloat16", "--device", "cpu"],
        "/health",
        [*completions, checkpoint],
    )
    yield (
        "llama.cpp",
        "llama-cpp-python's server",
        [python, "-m", "llama_cpp.server", "--model", checkpoint / "bf16.gguf", "--n_threads", args.threads, "--n_threads_batch",
         args.threads, "--n_ctx", 2048, "--interrupt_requests", "false"],
        "/v1/models",
        [*completions, "any"],
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
    raise TimeoutError(f"{url} did not answer within {START_SECONDS} s")


def through_http(args, python, checkpoint, raw):
    """The load client's report of each server and round."""
    tokens = [[3 + (7 * position + 31 * row) % 20000 for position in range(STREAM_PROMPT)] for row in range(STREAMS)]
    prompts = args.folder / "prompts"
    prompts.write_text("\n".join(json.dumps(" " + " ".join(map(word_of, row))) for row in tokens))
    load = ["--prompts", prompts, "--output-tokens", STREAM_TOKENS, "--read-timeout", 900, "--request-timeout", 900, "--json"]
    found = defaultdict(list)
    for index in range(args.rounds):
        for peer, name, command, path, flags in servers(args, python, checkpoint):
            if peer not in args.only:
                continue
            port = free_port()
            command = [str(part) for part in [*command, "--port", port]]
            environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
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
            # Rates of other work are no comparison.
            made = report["num_output_tokens"]
            assert made == STREAMS * STREAM_TOKENS, f"{name} made {made} tokens: {report['failures']}"
            found[name].append(report)
            print(name, output[:300], flush=True)
    return found


def machine(args, python):
    fields = dict(line.split(":", 1) for line in sh("lscpu", stdout=subprocess.PIPE).stdout.splitlines() if ":" in line)
    has = [flag for flag in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8") if flag in fields["Flags"].split()]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = sh(python, "-m", "pip", "freeze", stdout=subprocess.PIPE).stdout
    names = ("torch==", "transformers==", "llama_cpp_python==", "llama-cpp-python==")
    commit = sh("git", "rev-parse", "--short", "HEAD", stdout=subprocess.PIPE, cwd=ROOT).stdout.strip()
    return "\n".join([
        f"* {fields['Model name'].strip()}, family {fields['CPU family'].strip()} model {fields['Model'].strip()}, {' '.join(has)}",
        f"* {os.cpu_count()} processors, {args.threads} threads, {memory:.0f} GiB, Linux {platform.release()}",
        f"* hilo {commit}; " + ", ".join(line for line in versions.splitlines() if line.startswith(names)),
        f"* {args.shape}, {args.rounds} rounds in turn",
    ])


def usual_of(rates):
    """The median, and what it lies between."""
    usual = f"{statistics.median(rates):.1f}"
    return usual if len(rates) == 1 else f"{usual} ({min(rates):.1f} to {max(rates):.1f})"


def table(found, names):
    """Medians of the rounds, and the ratio to the best peer."""
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.2-1b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "target" / "peers")
    parser.add_argument("--report", type=pathlib.Path, help="Markdown; by default it is printed only")
    parser.add_argument("--only", type=lambda names: names.split(","), default=["hilo", "torch", "llama.cpp"])
    parser.add_argument("--skip-http", action="store_true")
    parser.add_argument("--no-repack", action="store_true", help="as on processors with AMX, where llama.cpp's repacked weights crash")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    python, checkpoint = prepare(args)
    raw = []
    found = in_process(args, python, checkpoint, raw)
    parts = [f"# {args.shape} beside its peers", machine(args, python), "## In process", table(found, args.only)]
    if not args.skip_http:
        served = through_http(args, python, checkpoint, raw)
        parts += [f"## Through HTTP, {STREAMS} streams of {STREAM_PROMPT} and {STREAM_TOKENS} tokens", http_table(served)]
    report = "\n\n".join([*parts, "## As printed", "```\n" + "\n".join(raw) + "```"]) + "\n"
    print(report)
    if args.report:
        args.report.write_text(report)


if __name__ == "__main__":
    main()
