"""Renders conversations with many chat templates in transformers and writes one JSON file for each template.

`router/src/text/chat_template/recorded.rs` compares the results with those of this server.
"""

import datetime
import json
import sys
from pathlib import Path

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from conversations import CONVERSATIONS
from packages import templates

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Clock(datetime.datetime):
    """A clock with the fixed time that `recorded.rs` also uses."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 7, 9, 5, 2)


def outcome(tokenizer: PreTrainedTokenizerFast, conversation: dict) -> dict:
    """Returns the text, the template's own error, or the Python error of rendering it."""
    try:
        text = tokenizer.apply_chat_template(
            conversation["messages"],
            tools=conversation["tools"],
            documents=conversation["documents"],
            add_generation_prompt=conversation["ending"] == "generation_prompt",
            continue_final_message=conversation["ending"] == "final_message",
            tokenize=False,
            **conversation["variables"],
        )
    except Exception as error:  # A template may fail in any way.
        is_raised = type(error) is jinja2.TemplateError
        return {"raised": error.message} if is_raised else {"failed": f"{type(error).__name__}: {error}"}
    return {"text": text}


def main(packages: Path, recordings: Path) -> None:
    chat_template_utils.datetime = Clock
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({})), **SPECIAL_TOKENS)
    found = templates(packages)
    for name, template in found.items():
        tokenizer.chat_template = template
        cases = [{"name": case, **conversation, "expected": outcome(tokenizer, conversation)}
                 for case, conversation in CONVERSATIONS.items()]
        recording = {"template": template, "special_tokens": SPECIAL_TOKENS, "cases": cases}
        path = recordings / (name.replace("/", "-") + ".json")
        path.write_text(json.dumps(recording, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"{len(found)} templates, {len(CONVERSATIONS)} conversations each")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
