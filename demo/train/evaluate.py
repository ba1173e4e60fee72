"""Measures the saved demo model on held-out questions, with transformers' greedy decoding.

Reports the share of right answers (the whole answer, letter by letter) for each
kind of question, whether stories end and keep to the wished subject, and prints samples.

    python evaluate.py [--model FOLDER] [--per-kind N] [--seed N] [--dtype bfloat16|float32]
"""
import argparse
import pathlib
import random
import time
from collections import defaultdict

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import corpus
from plots import make_scene, make_story
from questions import make_difference, make_fact, make_opposite, make_sum, pick_item
from stories import being
from words import COLOURS, TOYS, an

PROMPTS = ["Once upon a time", "The little dog", "One day Anna", "In the forest", "My name is Olivier and I", "Tom had a red ball."]
SAMPLES = ["What is 3 + 4?", "what's 8+9", "What is the opposite of hot?", "Who are you?", "What can you do?", "What is Deep Learning?",
           "How many legs does a spider have?", "What colour is the sky?", "Who won the game last night?", "Tell me a story about a cat.",
           "Write a story about Anna and a blue boat.", "Tom has a red kite and Lily has a green hat. What colour is Lily's hat?"]


def questions(seed, n):
    """Held-out questions: n chats (messages, answer) for each of sums, differences, opposites, facts and three story settings."""
    rng, out = random.Random(seed), {}
    for make in (make_sum, make_difference, make_opposite, make_fact):
        items = {}
        for _ in range(100 * n):  # the held-out questions of a kind may be fewer than n
            if len(items) == n:
                break
            item = pick_item(rng, make, test=True)
            items.setdefault(item.key, item)
        out[item.kind] = [([("user", i.question)], i.answer) for i in items.values()]

    def about(make, before):
        """Questions about stories or scenes; `before` lays out the chat up to and with the question."""
        chats = []
        while len(chats) < n:
            story = make(rng)
            for item in corpus.story_questions(rng, story, 1, test=True):
                chats.append((before(story, item), item.answer, item.kind))
        return chats

    told = lambda story, item: [("user", rng.choice(corpus.TELL).format(s=story.string, q=item.question))]

    def heard(story, item):
        chat = [("user", corpus.make_request(rng, story)), ("assistant", story.string)]
        for other in corpus.story_questions(rng, story, rng.randrange(3)):
            chat += [("user", other.question), ("assistant", other.answer)]
        return chat + [("user", item.question)]

    out["story told by the user"] = about(make_story, told)
    out["story told by the model, later turn"] = about(make_story, heard)
    out["a few facts about people"] = about(make_scene, told)
    return out


class Runner:
    """Batched generation from chats or raw prompts."""

    def __init__(self, folder, dtype):
        self.tok = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.roles = set(self.tok.convert_tokens_to_ids(["<|system|>", "<|user|>", "<|assistant|>"]))
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def chat_text(self, messages):
        return self.tok.apply_chat_template([dict(role=r, content=c) for r, c in messages], tokenize=False, add_generation_prompt=True)

    def run(self, texts, limit, sample=False, raw=False, batch=50):
        """(new text, ended well: with eos and without a role token) for each prompt; raw prompts get their bos from the tokenizer."""
        out, order = [None] * len(texts), sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(order), batch):
            part = order[start:start + batch]
            inputs = self.tok([texts[i] for i in part], return_tensors="pt", padding=True, add_special_tokens=raw)
            how = dict(do_sample=True, temperature=0.7) if sample else dict(do_sample=False, temperature=None)
            with torch.inference_mode():
                ids = self.model.generate(**inputs, max_new_tokens=limit, **how)[:, inputs.input_ids.shape[1]:]
            for i, row in zip(part, ids.tolist()):
                out[i] = (self.tok.decode(row, skip_special_tokens=True), self.tok.eos_token_id in row and not self.roles & set(row))
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--per-kind", type=int, default=300)
    parser.add_argument("--stories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20240)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--wrong", type=int, default=3, help="wrong answers to print for each kind")
    args = parser.parse_args()
    logging.set_verbosity_error()
    torch.manual_seed(args.seed)
    runner, start = Runner(args.model, getattr(torch, args.dtype)), time.time()

    counts, details = {}, defaultdict(lambda: [0, 0])
    for kind, chats in questions(args.seed, args.per_kind).items():
        answers = runner.run([runner.chat_text(c[0]) for c in chats], limit=48)
        right, shown = 0, 0
        for chat, (text, ended) in zip(chats, answers):
            good = ended and text == chat[1]
            right += good
            if len(chat) == 3:
                details[chat[2]][0] += good
                details[chat[2]][1] += 1
            if not good and shown < args.wrong:
                shown += 1
                print(f"wrong [{kind}] {chat[0][-1][1]!r} -> {text!r}, not {chat[1]!r}")
        counts[kind] = (right, len(chats))
    print("\nright answers, held-out questions")
    for kind, (right, n) in counts.items():
        print(f"  {kind:36} {right:4} of {n:4}  {right / n:.1%}")
    right, n = (sum(c) for c in zip(*counts.values()))
    print(f"  {'all':36} {right:4} of {n:4}  {right / n:.1%}")
    print("story questions by what is asked")
    for kind, (a, b) in sorted(details.items()):
        print(f"  {kind:36} {a:4} of {b:4}  {a / b:.1%}")

    rng = random.Random(args.seed + 1)
    wishes = []
    for i in range(args.stories):
        who, colour, toy = being(rng), rng.choice(COLOURS), rng.choice(TOYS)
        subject, words = (f"{who.short} and {an(colour)} {toy}", [f"{colour} {toy}"]) if i % 2 else (who.short, [])
        wishes.append((rng.choice(corpus.REQUESTS).format(subject), words + [who.short.split()[-1]]))
    for sample in (False, True):
        told = runner.run([runner.chat_text([("user", w)]) for w, _ in wishes], limit=300, sample=sample)
        ended = sum(e for _, e in told) / len(told)
        kept = sum(all(w.lower() in t.lower() for w in words) for (_, words), (t, _) in zip(wishes, told)) / len(told)
        raw = runner.run(PROMPTS * 20 if sample else PROMPTS, limit=300, sample=sample, raw=True)
        print(f"stories, {'temperature 0.7' if sample else 'greedy'}: {ended:.1%} of {len(told)} end within 300 tokens, {kept:.1%} name the wished "
              f"subject; raw prompts: {sum(e for _, e in raw) / len(raw):.1%} of {len(raw)} end")
    print(f"time: {time.time() - start:.0f} s")

    print("\nsamples, greedy")
    for q, (a, _) in zip(SAMPLES, runner.run([runner.chat_text([("user", q)]) for q in SAMPLES], limit=300)):
        print(f"  {q}\n    {a}")
    print("samples, temperature 0.7, raw prompts")
    for q, (a, _) in zip(PROMPTS, runner.run(PROMPTS, limit=300, sample=True, raw=True)):
        print(f"  {q} |{a}")


if __name__ == "__main__":
    main()
