"""Tests of the unmodified lm-eval against a running server: a multiple-choice task by log-probabilities, with prompts
as token ids and as texts, and by the answers of a conversation. `evaluation/` has the task, and the reference values of
transformers."""

import contextlib
import json
import logging
import os
import pathlib
import sys
import tempfile

# Otherwise the packages look for newer versions of data sets.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=tempfile.mkdtemp(), TOKENIZERS_PARALLELISM="false")

import lm_eval
from lm_eval.tasks import TaskManager

TASKS = pathlib.Path(__file__).resolve().parent / "evaluation"
DEMO = TASKS.parents[2] / "demo"
REFERENCE = json.loads((TASKS / "reference.json").read_text())
# The tolerance for a server in float32. In the demo's bf16 the second decimal would differ.
TOLERANCE = 1e-3

# name: (reference, arguments of lm-eval)
WAYS = {
    "ids": ("without_bos", dict(tokenized_requests=True)),
    "ids with the beginning": ("with_bos", dict(tokenized_requests=True, add_bos_token=True)),
    "lists of ids, side by side": ("with_bos", dict(tokenized_requests=True, add_bos_token=True, num_concurrent=3, batch_size=4)),
    "texts": ("with_bos", dict(tokenized_requests=False)),
    "texts with the beginning": ("with_bos", dict(tokenized_requests=False, add_bos_token=True)),
    "lists of texts": ("with_bos", dict(tokenized_requests=False, batch_size=4)),
}


def evaluate(model: str, task: str, args: dict, **options) -> dict:
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        return lm_eval.simple_evaluate(
            model=model, model_args=dict(model="demo", max_length=1024, **args), tasks=[task], task_manager=manager,
            bootstrap_iters=0, **options,
        )


def check_scores(url: str, way: str) -> None:
    name, told = WAYS[way]
    args = dict(base_url=f"{url}/v1/completions", tokenizer=str(DEMO), **told)
    result = evaluate("local-completions", "questions", args)
    samples = sorted(result["samples"]["questions"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(REFERENCE[name]), (way, len(samples))
    for sample, expected in zip(samples, REFERENCE[name]):
        scores = [(float(response[0][0]), str(response[0][1]) == "True") for response in sample["resps"]]
        assert len(scores) == len(expected), (way, sample)
        for (logprob, is_greedy), (expected_logprob, expected_greedy) in zip(scores, expected):
            assert abs(logprob - expected_logprob) < TOLERANCE, (way, sample["doc"], logprob, expected_logprob)
            assert is_greedy == expected_greedy, (way, sample["doc"], scores, expected)
    best = [max(range(len(row)), key=lambda index: row[index][0]) for row in REFERENCE[name]]
    right = sum(sample["doc"]["answer"] == choice for sample, choice in zip(samples, best)) / len(best)
    assert abs(result["results"]["questions"]["acc,none"] - right) < 1e-9, (way, result["results"])


def check_conversations(url: str) -> None:
    args = dict(base_url=f"{url}/v1/chat/completions", tokenizer_backend=None, num_concurrent=2)
    result = evaluate("local-chat-completions", "spoken_questions", args, apply_chat_template=True)
    assert result["results"]["spoken_questions"]["exact_match,none"] == 1.0, result["samples"]


def main(url: str) -> None:
    logging.disable(logging.WARNING)
    os.chdir(TASKS)
    for way in WAYS:
        check_scores(url, way)
    check_conversations(url)
    print(f"lm_eval: ok: {len(WAYS)} ways to score, and conversations")


if __name__ == "__main__":
    main(sys.argv[1])
