"""Tests of the unmodified `llm` command against a running server, which is one of its extra models: prompts, a
conversation, schemas of one object and of several, in its short notation and as JSON, streamed and whole, and its
log."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import jsonschema

QUESTION = "What is 3 + 4?"
ANSWER = "3 + 4 is 7."
GREEDY = ("-o", "temperature", "0")
# Without these options the model does not stop, and closes a list (token 66 is `]`) as soon as it is open.
TERSE = (*GREEDY, "-o", "frequency_penalty", "2")
LONGER = (*TERSE, "-o", "logit_bias", '{"66": -6}')
MODELS = """\
- {{model_id: chats, model_name: demo, api_base: "{url}/v1", supports_schema: true}}
- {{model_id: responses, model_name: demo, api_base: "{url}/v1", supports_schema: true, responses: true}}
- {{model_id: completions, model_name: demo, api_base: "{url}/v1", completion: true}}
"""
# These types limit the length of the answer.
NAME = {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"}
AGE = {"type": "integer", "minimum": 1, "maximum": 99}
PERSON = {"type": "object", "properties": {"name": NAME, "age": AGE}, "required": ["name", "age"]}


class Command:
    """The command `llm` with a separate folder."""

    def __init__(self, folder: str, url: str) -> None:
        pathlib.Path(folder, "extra-openai-models.yaml").write_text(MODELS.format(url=url))
        self.environment = {**os.environ, "LLM_USER_PATH": folder}

    def __call__(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout.strip()


def multi(schema: dict) -> dict:
    """Returns the schema that `--schema-multi` makes of `schema`."""
    return {"type": "object", "properties": {"items": {"type": "array", "items": schema}}, "required": ["items"]}


def check_value(text: str, schema: dict) -> dict:
    try:
        value = json.loads(text)
        jsonschema.Draft202012Validator(schema).validate(value)
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        raise AssertionError(f"{text!r}: {error}") from None
    return value


def check_prompts(llm: Command) -> None:
    for model in ("responses", "chats"):
        for how in ((), ("--no-stream",)):
            assert llm("-m", model, *GREEDY, *how, QUESTION) == ANSWER, (model, how)
    assert llm("-m", "chats", *GREEDY, "-c", "What is the opposite of hot?") == "The opposite of hot is cold."
    assert llm("-m", "completions", *GREEDY, "-o", "max_tokens", "5", "Once upon a time").startswith(",")


def check_schemas(llm: Command, folder: str) -> None:
    one, several = (json.loads(llm("schemas", "dsl", *flag, "name, age int")) for flag in ((), ("--multi",)))
    assert one["properties"] == {"name": {"type": "string"}, "age": {"type": "integer"}}, one
    file = pathlib.Path(folder, "person.json")
    file.write_text(json.dumps(PERSON))
    ask = "Tell me about Tom and his red kite."
    for how in ((), ("--no-stream",)):
        check_value(llm("-m", "chats", *TERSE, *how, "--schema", "name, age int", ask), one)
        check_value(llm("-m", "chats", *TERSE, *how, "--schema-multi", "name, age int", ask), several)
        people = check_value(llm("-m", "chats", *LONGER, *how, "--schema-multi", str(file), ask), multi(PERSON))
        assert len(people["items"]) > 1, people
        check_value(llm("-m", "responses", *GREEDY, *how, "--schema", str(file), ask), PERSON)
        check_value(llm("-m", "responses", *GREEDY, *how, "--schema-multi", str(file), ask), multi(PERSON))
    # The log contains the answers as data.
    rows = [json.loads(line) for line in llm("logs", "--schema", str(file), "--data", "-n", "0").splitlines()]
    assert len(rows) == 2 and all(set(row) == {"name", "age"} for row in rows), rows


def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        llm = Command(folder, url)
        check_prompts(llm)
        check_schemas(llm, folder)
    print("llm: ok")


if __name__ == "__main__":
    main(sys.argv[1])
