#!/usr/bin/env python3
"""Compares the speed of the CPU kernels of two commits, on every instruction set that this processor has.

    python3 bench/guard.py BASE [HEAD]

Without HEAD, the working tree is measured. The two commits are measured in turn. The exit status is 1 if HEAD is slower
than BASE by more than `--tolerance`. The results are ratios of the best speeds of the two commits; a result that looks
slow is measured again before it counts. Before you submit a change to `kernels/` or `cpu/src/`, run this on a machine
with nothing else running, and put the tables into the commit's message.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The values of `HILO_CPU_ISA`. A CPU supports only some of them.
ISAS = ["portable", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx"]
BENCHES = ["linear", "attention"]
LINEAR = re.compile(r"(\w+) m=(\d+) .* ([\d.]+) GFLOP/s")
HEADS = re.compile(r"(\d+) heads, (\d+) of keys, of (\d+)")
ATTENTION = re.compile(r"(\w+) +(?:\d+ rows|prompt) of (\d+): +([\d.]+) ms")


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as directory:
        folder = (options.target or pathlib.Path(directory)).resolve()
        slow = compare([Side(commit, folder) for commit in (options.base, options.head)], options)
    sys.exit(1 if slow else 0)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="commit to compare with")
    parser.add_argument("head", nargs="?", help="commit to judge; without it, the working tree")
    parser.add_argument("--isa", action="append", choices=ISAS, help="instruction set, may be repeated; default: all")
    parser.add_argument("--bench", action="append", choices=BENCHES, help="kernels to measure; default: both")
    parser.add_argument("--type", help="type of weights or of the cache to measure, such as int8; default: all")
    parser.add_argument("--rounds", type=int, default=2, help="number of times that each commit is measured; default: 2")
    parser.add_argument("--again", type=int, default=6, help="maximum number of further times for results that look slow; default: 6")
    parser.add_argument("--tolerance", type=float, default=3.0, help="per cent that HEAD may be slower; default: 3")
    parser.add_argument("--target", type=pathlib.Path, help="folder in which to keep the builds; default: builds are not kept")
    return parser.parse_args()


class Side:
    """The built benches of one commit."""

    def __init__(self, commit, folder):
        self.name = git("rev-parse", "--short", commit) if commit else "working tree"
        executables = folder / self.name.replace(" ", "-")
        self.benches = {bench: executables / bench for bench in BENCHES}
        if commit and all(executable.exists() for executable in self.benches.values()):
            return
        print(f"Building the benches of {self.name} …", file=sys.stderr)
        executables.mkdir(parents=True, exist_ok=True)
        if not commit:
            return self.build(ROOT, executables)
        with tempfile.TemporaryDirectory() as source:
            git("worktree", "add", "--detach", source, commit)
            try:
                self.build(source, executables)
            finally:
                git("worktree", "remove", "--force", source)

    def build(self, source, executables):
        """Builds the benches. Each side has its own folder, because cargo would confuse two sources of the same crate."""
        command = ["cargo", "bench", "--locked", "-p", "kernels", "--benches", "--no-run"]
        environment = {**os.environ, "CARGO_TARGET_DIR": str(executables / "build")}
        build = subprocess.run(command, cwd=source, env=environment, stderr=subprocess.PIPE, text=True)
        if build.returncode:
            sys.exit(f"{self.name} does not build:\n{build.stderr}")
        for bench, executable in re.findall(r"Executable benches/(\w+)\.rs \((.*)\)", build.stderr):
            shutil.copy(executable, self.benches[bench])

    def measure(self, bench, isa, *rest):
        """Returns the speeds by (bench, type, column), or `None` if the CPU or the commit lacks the instruction set."""
        result = subprocess.run([self.benches[bench], isa, *rest], capture_output=True, text=True)
        if result.returncode == 1:
            return None
        if result.returncode:
            sys.exit(f"{bench} of {self.name} failed on {isa} with exit status {result.returncode}:\n{result.stderr}")
        speeds, heads = {}, ""
        for line in result.stdout.splitlines():
            if match := LINEAR.match(line):
                speeds["linear", match[1], f"{match[2]} rows"] = float(match[3])
            elif match := HEADS.match(line):
                heads = f"{match[1]}/{match[2]} heads of {match[3]}"
            elif match := ATTENTION.match(line):
                kind = "prompt" if "prompt" in line else "rows"
                speeds["attention", match[1], f"{kind}, {heads}"] = 1 / float(match[3])
        return speeds


def compare(sides, options):
    """Prints a table of ratios for each instruction set. Returns the measurements in which HEAD is slower."""
    base, head = sides
    missing, slow = [], []
    benches = options.bench or BENCHES
    print(f"How many times as fast {head.name} is as {base.name}; {processor()}")
    for isa in options.isa or ISAS:
        best = [{}, {}]
        covered = all(turn(sides, bench, isa, options, best) for bench in benches)
        if not covered:
            missing.append(isa)
            continue
        if not ratios(best):
            sys.exit(f"nothing was measured on {isa}: the benches of both commits print no speeds for type {options.type}")
        for _ in range(options.again):
            # Each measurement is repeated alone, because the speed of memory changes from minute to minute.
            suspects = {suspect(*place) for place in slow_places(best, options.tolerance)}
            for bench, *rest in sorted(suspects):
                keep_best(sides, best, bench, isa, *rest)
        print_table(isa, best)
        slow += [(isa, *place, ratio) for place, ratio in slow_places(best, options.tolerance).items()]
    if len(missing) == len(options.isa or ISAS):
        sys.exit(f"nothing was measured: this processor or a commit lacks {', '.join(missing)}")
    print(f"\nNot covered, because this processor or a commit lacks them: {', '.join(missing) or 'none'}.")
    for *place, ratio in slow:
        print(f"SLOWER: {' '.join(place)}: {ratio:.2f}")
    return slow


def suspect(bench, dtype, column):
    """Returns the bench and its arguments that repeat one measurement, and as few others as possible."""
    return (bench, dtype.lower(), column.split()[0]) if bench == "linear" else (bench, dtype.lower())


def turn(sides, bench, isa, options, best):
    """Measures both sides in turn. Returns false if one of them cannot run the instruction set."""
    rest = [options.type] if options.type else []
    return all(keep_best(sides, best, bench, isa, *rest) for _ in range(options.rounds))


def keep_best(sides, best, bench, isa, *rest):
    for side, kept in zip(sides, best):
        speeds = side.measure(bench, isa, *rest)
        if speeds is None:
            return False
        for place, speed in speeds.items():
            kept[place] = max(speed, kept.get(place, 0.0))
    return True


def ratios(best):
    base, head = best
    return {place: head[place] / base[place] for place in base if place in head}


def slow_places(best, tolerance):
    return {place: ratio for place, ratio in ratios(best).items() if ratio < 1 - tolerance / 100}


def print_table(isa, best):
    cells = ratios(best)
    for bench in BENCHES:
        places = [place for place in cells if place[0] == bench]
        columns = list(dict.fromkeys(place[2] for place in places))
        if not columns:
            continue
        print(f"\n| {isa}, {bench} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
        for dtype in dict.fromkeys(place[1] for place in places):
            print(f"| {dtype} | {' | '.join(f'{cells[bench, dtype, column]:.2f}' for column in columns)} |", flush=True)


def processor():
    names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"


def git(*arguments):
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        sys.exit(result.stderr)
    return result.stdout.strip()


if __name__ == "__main__":
    main()
