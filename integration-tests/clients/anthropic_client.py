"""Tests of the unmodified `anthropic` package against a running server: messages, whole, streamed and parsed, token
counts, models, errors."""

import asyncio
import sys
from typing import Literal

from anthropic import Anthropic, AsyncAnthropic, BadRequestError, NotFoundError, transform_schema
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "What is 3 + 4?"}]
ANSWER = "3 + 4 is 7."
# Newer versions of the package have no parameter `temperature`.
GREEDY = dict(extra_body={"temperature": 0})


# The classes have no bounds or patterns, because the package moves them into descriptions.
class Day(BaseModel):
    name: Literal["Monday", "Tuesday"]
    is_warm: bool


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    today: Day
    tomorrow: Day | None


def check_formats(client: Anthropic) -> None:
    ask = dict(model="demo", max_tokens=200, messages=[{"role": "user", "content": "How warm is it in Rome?"}])
    for messages in (client.messages, client.beta.messages):
        whole = messages.parse(**ask, output_format=Weather)
        assert isinstance(whole.parsed_output, Weather) and whole.stop_reason == "end_turn", whole
        assert whole.parsed_output == Weather.model_validate_json(whole.content[0].text), whole
        with messages.stream(**ask, output_format=Weather) as stream:
            pieces = list(stream.text_stream)
            last = stream.get_final_message()
        assert last.parsed_output == Weather.model_validate_json("".join(pieces)) and len(pieces) > 3, last
    # A hand-written schema, in the present form and in that of the 2025 beta.
    form = {"type": "json_schema", "schema": transform_schema(Weather)}
    written = client.messages.create(**ask, output_config={"format": form})
    beta = dict(betas=["structured-outputs-2025-11-13"], extra_body={"output_format": form})
    older = client.beta.messages.create(**ask, **beta)
    for message in (written, older):
        Weather.model_validate_json(message.content[0].text)
    # The model does not see the schema, so it does not change the count.
    prompt = dict(model="demo", messages=ask["messages"])
    assert client.messages.count_tokens(**prompt, output_format=Weather) == client.messages.count_tokens(**prompt)
    short = client.messages.create(**{**ask, "max_tokens": 2}, output_config={"format": form})
    assert short.stop_reason == "max_tokens", short


async def check_async(url: str) -> None:
    client = AsyncAnthropic(base_url=url, api_key="-", max_retries=0)
    day = await client.messages.parse(model="demo", max_tokens=100, messages=QUESTION, output_format=Day)
    assert isinstance(day.parsed_output, Day), day


def main(url: str) -> None:
    client = Anthropic(base_url=url, api_key="-", max_retries=0)
    message = client.messages.create(model="demo", max_tokens=30, messages=QUESTION, **GREEDY)
    assert (message.role, message.content[0].text, message.stop_reason) == ("assistant", ANSWER, "end_turn"), message
    assert message.usage.output_tokens == 9, message

    with client.messages.stream(model="demo", max_tokens=30, messages=QUESTION, **GREEDY) as stream:
        pieces = list(stream.text_stream)
        last = stream.get_final_message()
    assert "".join(pieces) == ANSWER and len(pieces) > 3, pieces
    assert (last.content[0].text, last.stop_reason, last.usage.output_tokens) == (ANSWER, "end_turn", 9), last

    cut = client.messages.create(model="demo", max_tokens=30, messages=QUESTION, **GREEDY, stop_sequences=[" is"])
    assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("3 + 4", "stop_sequence", " is"), cut
    short = client.messages.create(model="demo", max_tokens=2, messages=QUESTION, **GREEDY)
    assert short.stop_reason == "max_tokens", short

    system = [{"type": "text", "text": "Be brief."}]
    count = client.messages.count_tokens(model="demo", messages=QUESTION, system=system)
    with_system = client.messages.create(model="demo", max_tokens=5, messages=QUESTION, system=system)
    whole = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert count.input_tokens == whole(with_system.usage) > whole(message.usage), (count, with_system)

    # A limit for the largest models means the rest of the context here.
    fits = client.messages.create(model="demo", max_tokens=32_000, messages=QUESTION, **GREEDY, timeout=60)
    assert fits.content[0].text == ANSWER, fits
    try:
        client.messages.create(model="demo", max_tokens=10, messages=[{"role": "user", "content": "7 " * 2_000}])
    except BadRequestError as error:
        assert "prompt is too long" in str(error) and error.body["error"]["type"] == "invalid_request_error", error.body
    else:
        raise AssertionError("a prompt that is longer than the context was accepted")

    [model] = client.models.list(limit=10).data
    assert (model.id, model.type, client.models.retrieve(model.id).display_name) == (model.id, "model", model.display_name), model
    try:
        client.models.retrieve("another")
    except NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    else:
        raise AssertionError("another model was found")
    check_formats(client)
    asyncio.run(check_async(url))
    print("anthropic: ok")


if __name__ == "__main__":
    main(sys.argv[1])
