"""Tests of the unmodified `huggingface_hub.InferenceClient` against a running server: text_generation and
chat_completion, whole and streamed, grammars, errors."""

import json
import re
import sys

import jsonschema
from huggingface_hub import InferenceClient, TextGenerationInputGrammarType
from huggingface_hub.errors import ValidationError

PROMPT = "Once upon a time"
# The example of the package's documentation, with limits that make the demo model end.
RIDE = "I saw a puppy a cat and a raccoon during my bike ride in the park"
ANIMALS = {
    "properties": {
        "location": {"type": "string", "maxLength": 40},
        "activity": {"type": "string", "maxLength": 40},
        "animals_seen": {"type": "integer", "minimum": 1, "maximum": 5},
        "animals": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 5},
    },
    "required": ["location", "activity", "animals_seen", "animals"],
}
BYTE = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"


def check_value(text: str, schema: dict = ANIMALS) -> None:
    try:
        jsonschema.Draft202012Validator({"type": "object", **schema}).validate(json.loads(text))
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        raise AssertionError(f"{text!r}: {error}") from None


def check_grammars(client: InferenceClient) -> None:
    ask = dict(prompt=RIDE, max_new_tokens=500, repetition_penalty=1.3, return_full_text=False)
    form = {"type": "json", "value": ANIMALS}
    text = client.text_generation(**ask, grammar=form)
    check_value(text)
    assert client.text_generation(**ask, grammar=TextGenerationInputGrammarType(**form)) == text
    events = list(client.text_generation(**ask, grammar=form, details=True, stream=True))
    pieces = [event.token.text for event in events if not event.token.special]
    assert "".join(pieces) == text == events[-1].generated_text, events
    output = client.text_generation(**ask, grammar=form, details=True)
    assert (output.generated_text, output.details.finish_reason) == (text, "eos_token"), output
    for regex in (rf"HELLO\.{BYTE}\.WORLD\.{BYTE}", r"\.".join([BYTE] * 4)):
        ask = dict(prompt="What is Google's DNS?", max_new_tokens=50, seed=42, return_full_text=False)
        text = client.text_generation(**ask, grammar={"type": "regex", "value": regex})
        assert re.fullmatch(regex, text), text


def check_formats(client: InferenceClient) -> None:
    question = [{"role": "user", "content": f"{RIDE}. What did I see and when?"}]
    ask = dict(messages=question, max_tokens=500, temperature=0)
    for form in (
        {"type": "json_schema", "json_schema": {"name": "animals", "schema": ANIMALS, "strict": True}},
        {"type": "json", "value": ANIMALS},
        {"type": "json_object", "value": ANIMALS},
    ):
        whole = client.chat_completion(**ask, response_format=form).choices[0]
        assert whole.finish_reason == "stop", whole
        check_value(whole.message.content)
        deltas = client.chat_completion(**ask, response_format=form, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in deltas) == whole.message.content
    # The object has no schema. These parameters make the model end it.
    ask = dict(ask, max_tokens=300, temperature=1, frequency_penalty=2, response_format={"type": "json_object"})
    drawn = (client.chat_completion(**ask, seed=seed).choices[0] for seed in range(16))
    check_value(next(choice for choice in drawn if choice.finish_reason == "stop").message.content, {})


def main(url: str) -> None:
    client = InferenceClient(model=url, timeout=60)

    # As with TGI, the route `/` repeats the prompt unless the request says otherwise.
    full = client.text_generation(PROMPT, max_new_tokens=20)
    text = client.text_generation(PROMPT, max_new_tokens=20, return_full_text=False)
    assert full == PROMPT + text, (full, text)

    output = client.text_generation(PROMPT, max_new_tokens=20, return_full_text=False, details=True)
    assert output.generated_text == text, output
    assert output.details.finish_reason == "length" and output.details.generated_tokens == 20, output

    pieces = list(client.text_generation(PROMPT, max_new_tokens=20, stream=True))
    assert "".join(pieces) == text, pieces

    sampled = [client.text_generation(PROMPT, max_new_tokens=20, do_sample=True, temperature=1.3, seed=3) for _ in range(2)]
    assert sampled[0] == sampled[1], sampled

    question = [{"role": "user", "content": "What is 3 + 4?"}]
    answer = client.chat_completion(question, temperature=0, max_tokens=30)
    assert answer.choices[0].message.content == "3 + 4 is 7." and answer.choices[0].finish_reason == "stop", answer
    deltas = client.chat_completion(question, temperature=0, max_tokens=30, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in deltas) == "3 + 4 is 7."

    check_grammars(client)
    check_formats(client)

    for stream in (False, True):
        try:
            list(client.text_generation(PROMPT, max_new_tokens=100_000, stream=stream))
        except ValidationError as error:
            assert "max_new_tokens" in str(error), error
        else:
            raise AssertionError("100000 new tokens were accepted")
    print("huggingface_hub: ok")


if __name__ == "__main__":
    main(sys.argv[1])
