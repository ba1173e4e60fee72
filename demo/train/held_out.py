"""Writes the tokens of documents that the demo model was not trained on, one document a line.

    python held_out.py ../../shard/src/engine/tests/held_out.txt [--seed N]

Training draws its documents from seeds 1 and 2 (train.py); these come from another one. Needs `tokenizers`.
"""
import argparse
import pathlib
import random

from tokenizers import Tokenizer

import corpus

NUM_DOCUMENTS = 8
MAX_TOKENS = 120


def markup(doc):
    """A document as the model reads it."""
    if isinstance(doc, str):
        return f"<|bos|>{doc}<|eos|>"
    return "<|bos|>" + "".join(f"<|{role}|>{text}" + ("<|eos|>" if role == "assistant" else "") for role, text in doc)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=20261122)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(pathlib.Path(__file__).parent.parent / "tokenizer.json"))
    rng = random.Random(args.seed)
    lines = []
    while len(lines) < NUM_DOCUMENTS:
        ids = tokenizer.encode(markup(corpus.make_document(rng)), add_special_tokens=False).ids
        if len(ids) >= MAX_TOKENS:
            lines.append(" ".join(map(str, ids[:MAX_TOKENS])) + "\n")
    args.out.write_text("".join(lines))


main()
