"""The steps that are timed for every peer, and the functions that print the times."""

import argparse
import os
import statistics
import time


def arguments(model):
    """Returns a parser of the arguments that all peers share. `model` is the help text of the positional argument."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help=model)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--rows", type=lambda text: [int(count) for count in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser


def prompt(length, row=0):
    """Returns the tokens of a prompt. The prompts of two rows differ from the first token on."""
    return [3 + (position * 7 + row * 31) % 100 for position in range(length)]


def report_prefill(args, seconds):
    report(f"prefill {args.prompt_tokens:<4}", seconds, args.prompt_tokens)


def report_decode(rows, seconds):
    report(f"decode  {rows:<4}", seconds, rows)


def report(name, seconds, tokens):
    usual, best = statistics.median(seconds), min(seconds)
    print(
        f"{name} {tokens / usual:7.1f} tokens/s, best {tokens / best:7.1f};"
        f" a step {usual * 1e3:7.1f} ms, best {best * 1e3:7.1f}",
        flush=True,
    )


def measure_engine(args, engine):
    """Times an engine for many requests: first single prompts, then steps that continue all rows.

    `ask(rows, num_tokens)` sends a request for each row, which will generate `num_tokens` tokens; `step()` runs a step;
    `num_tokens()` lists the number of generated tokens of each request; `is_busy()` is true while a request is
    unfinished.
    """
    seconds = []
    for _ in range(args.steps):
        engine.ask(1, 1)
        seconds.append(0)
        while engine.is_busy():
            seconds[-1] += timed(engine.step)
        assert engine.num_tokens() == [1], engine.num_tokens()
    report_prefill(args, seconds)
    for rows in args.rows:
        # A row may be up to `rows` tokens ahead of another row, because prompts may be read one after the other.
        engine.ask(rows, args.steps + rows + 1)
        while min(engine.num_tokens()) == 0:
            engine.step()
        seconds = []
        for _ in range(args.steps):
            before = sum(engine.num_tokens())
            seconds.append(timed(engine.step))
            assert sum(engine.num_tokens()) == before + rows, "a step did not add one token to every row"
        report_decode(rows, seconds)
        while engine.is_busy():
            engine.step()


def timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
