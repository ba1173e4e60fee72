"""Tests of the unmodified `litellm` package against a running server: chats, whole, streamed and asynchronous,
completions, tools, structured output, errors."""

import asyncio
import json
import os
import sys

# Without this setting litellm would download prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from pydantic import BaseModel, Field

QUESTION = [{"role": "user", "content": "What is 3 + 4?"}]
ANSWER = "3 + 4 is 7."
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False},
    },
}


class Sum(BaseModel):
    left: int = Field(ge=0, le=9)
    right: int = Field(ge=0, le=9)


def check_chat(ask: dict) -> None:
    whole = litellm.completion(**ask, temperature=0)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (ANSWER, "stop"), whole
    assert whole.usage.completion_tokens == 9 and whole.usage.total_tokens == whole.usage.prompt_tokens + 9, whole
    chunks = list(litellm.completion(**ask, temperature=0, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(pieces) == ANSWER and len(pieces) > 3, pieces
    assert chunks[-1].usage.completion_tokens == 9, chunks[-1]
    short = litellm.completion(**ask, temperature=0, max_tokens=2)
    assert short.choices[0].finish_reason == "length", short
    stopped = litellm.completion(**ask, temperature=0, stop=[" is"])
    assert stopped.choices[0].message.content == "3 + 4", stopped
    likely = litellm.completion(**ask, temperature=0, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(likely) == 9 and all(len(token["top_logprobs"]) == 2 for token in likely), likely
    seeded = [litellm.completion(**ask, temperature=1.5, seed=7, n=2).choices for _ in range(2)]
    assert [choice.message.content for choice in seeded[0]] == [choice.message.content for choice in seeded[1]], seeded


async def check_async(ask: dict) -> None:
    whole = await litellm.acompletion(**ask, temperature=0)
    assert whole.choices[0].message.content == ANSWER, whole
    stream = await litellm.acompletion(**ask, temperature=0, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER


def check_tools(ask: dict) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = litellm.completion(**ask, tools=[WEATHER], tool_choice=named).choices[0]
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and call.function.name == "get_weather", choice
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), call
    formatted = litellm.completion(**ask, response_format=Sum, temperature=1, seed=1).choices[0].message.content
    Sum.model_validate_json(formatted)


def check_errors(ask: dict) -> None:
    try:
        litellm.completion(**ask, temperature=-1)
    except litellm.exceptions.BadRequestError as error:
        assert "`temperature` must be strictly positive" in str(error), error
    else:
        raise AssertionError("a temperature below zero was taken")


def main(url: str) -> None:
    server = dict(api_base=f"{url}/v1", api_key="-", num_retries=0, max_retries=0)
    ask = dict(server, model="openai/demo", messages=QUESTION)
    check_chat(ask)
    asyncio.run(check_async(ask))
    check_tools(ask)
    check_errors(ask)
    text = litellm.text_completion(**server, model="text-completion-openai/demo", prompt="Once upon a time", max_tokens=5, temperature=0)
    assert text.choices[0].text.startswith(",") and text.usage.completion_tokens == 5, text
    print("litellm: ok")


if __name__ == "__main__":
    main(sys.argv[1])
