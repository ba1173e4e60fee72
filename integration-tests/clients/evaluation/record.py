"""Writes reference.json, computed by transformers in float32. For each choice in questions.jsonl, with and without the
BOS token before it: the sum of the log-probabilities of its tokens, and true if each of them is the likeliest token.

    pip install -r ../../fixtures/requirements.txt
    python record.py
"""

import json
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE.parents[2] / "demo"


def score(model, context: list[int], choice: list[int]) -> list:
    logits = model(torch.tensor([context + choice])).logits[0, len(context) - 1 : -1]
    logprobs = torch.log_softmax(logits, dim=-1)
    total = logprobs.gather(1, torch.tensor(choice)[:, None]).sum().item()
    return [round(total, 6), logprobs.argmax(dim=-1).tolist() == choice]


def main() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    reference = {"with_bos": [], "without_bos": []}
    for line in (HERE / "questions.jsonl").read_text().splitlines():
        question = json.loads(line)
        ids = lambda text: tokenizer(text, add_special_tokens=False).input_ids
        context = ids(f"<|user|>{question['question']}<|assistant|>")
        for name, front in (("with_bos", [tokenizer.bos_token_id]), ("without_bos", [])):
            with torch.no_grad():
                reference[name].append([score(model, front + context, ids(choice)) for choice in question["choices"]])
    rows = {name: ",\n  ".join(map(json.dumps, rows)) for name, rows in reference.items()}
    text = ",\n".join(f' "{name}": [\n  {rows}\n ]' for name, rows in rows.items())
    (HERE / "reference.json").write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main()
