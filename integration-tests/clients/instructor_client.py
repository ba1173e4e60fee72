"""Tests of the unmodified `instructor` package against a running server: objects of a class from OpenAI's and
Anthropic's API, by tools and by schemas, whole, in parts and asynchronously. Some modes (JSON, MD_JSON) leave the form
of the answer to the model, which is too difficult for the demo model. There the test adds a constraint to the request,
or expects instructor's own error."""

import asyncio
import contextlib
import json
import logging
import sys

import anthropic
import instructor
import openai
from instructor import Mode
from instructor.core import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel, ConfigDict, Field


class Weather(BaseModel):
    """The weather in a city."""

    city: str = Field(pattern="^(Paris|Rome)$")
    days: int = Field(ge=1, le=9)
    is_warm: bool


class Anything(BaseModel):
    """Any object."""

    model_config = ConfigDict(extra="allow")


ASK = dict(model="demo", messages=[{"role": "user", "content": "How warm is it in Rome?"}], max_retries=0)
OPENAI_MODES = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.FUNCTIONS, Mode.RESPONSES_TOOLS, Mode.JSON_SCHEMA)
# A bias that makes the model choose the token `}` as soon as it is allowed.
END = {"98": 100}
# A grammar for the weather in a code block.
BLOCK = {"guided_regex": r'```json\n\{"city": "(Paris|Rome)", "days": [1-9], "is_warm": (true|false)\}\n```'}


def check(weather: Weather, mode: str) -> None:
    assert type(weather).__name__.endswith("Weather") and weather.city in ("Paris", "Rome") and 1 <= weather.days <= 9, (mode, weather)


def check_json(server: dict) -> None:
    """The mode JSON allows any object. If its fields are wrong, instructor retries with the error, then gives up."""
    client = instructor.from_openai(openai.OpenAI(**server), mode=Mode.JSON)
    answers = []
    client.on("completion:response", lambda completion: answers.append(completion.choices[0]))
    objects = []
    for seed in range(8):
        with contextlib.suppress(IncompleteOutputException):  # The model does not stop.
            options = dict(max_tokens=300, frequency_penalty=2, seed=seed)
            objects.append(client.create(response_model=Anything, **options, **ASK))
    ended = [json.loads(answer.message.content) for answer in answers if answer.finish_reason == "stop"]
    assert ended and [found.model_extra for found in objects] == ended, (objects, ended)
    try:
        client.create(response_model=Weather, max_tokens=30, logit_bias=END, **{**ASK, "max_retries": 1})
    except InstructorRetryException as error:
        assert error.n_attempts == 2 and "city" in str(error), error
    else:
        raise AssertionError("an empty object is no weather")
    assert [answer.message.content for answer in answers[-2:]] == ["{}", "{}"], answers


def check_blocks(server: dict) -> None:
    client = instructor.from_openai(openai.OpenAI(**server), mode=Mode.MD_JSON)
    ask = dict(response_model=Weather, max_tokens=200, **ASK)
    check(client.create(**ask, extra_body=BLOCK), "MD_JSON")
    parts = list(client.create_partial(**ask, extra_body=BLOCK))
    check(parts[-1], "parts of MD_JSON")
    try:
        check(client.create(**{**ask, "max_retries": 1}, temperature=0), "MD_JSON")
    except InstructorRetryException as error:
        assert error.n_attempts == 2, error


def check_anthropic(url: str) -> None:
    server = anthropic.Anthropic(base_url=url, api_key="-", max_retries=0)
    client = instructor.from_anthropic(server)
    check(client.create(response_model=Weather, max_tokens=4096, **ASK), "from_anthropic")
    client = instructor.from_anthropic(server, mode=Mode.JSON)
    form = {"output_config": {"format": {"type": "json_schema", "schema": Weather.model_json_schema()}}}
    check(client.create(response_model=Weather, max_tokens=200, extra_body=form, **ASK), "from_anthropic: JSON")


def main(url: str) -> None:
    logging.disable(logging.ERROR)  # instructor also logs the errors that it raises.
    server = dict(base_url=f"{url}/v1", api_key="-", max_retries=0)
    for mode in OPENAI_MODES:
        client = instructor.from_openai(openai.OpenAI(**server), mode=mode)
        check(client.create(response_model=Weather, max_tokens=200, **ASK), mode.name)
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(**server), mode=mode)
        parts = list(client.create_partial(response_model=Weather, max_tokens=200, **ASK))
        assert len(parts) > 3, parts
        check(parts[-1], f"parts of {mode.name}")
    weather, completion = instructor.from_openai(openai.OpenAI(**server)).create_with_completion(response_model=Weather, max_tokens=200, **ASK)
    check(weather, "with completion")
    assert completion.usage.completion_tokens > 5, completion
    provided = instructor.from_provider("openai/demo", **server)
    check(provided.create(response_model=Weather, max_tokens=200, **{**ASK, "model": "demo"}), "from_provider")
    client = instructor.from_openai(openai.AsyncOpenAI(**server))
    check(asyncio.run(client.create(response_model=Weather, max_tokens=200, **ASK)), "asynchronous")
    check_json(server)
    check_blocks(server)
    check_anthropic(url)
    print(f"instructor: ok: {', '.join(mode.name for mode in OPENAI_MODES)}, JSON, MD_JSON, from_provider, from_anthropic")


if __name__ == "__main__":
    main(sys.argv[1])
