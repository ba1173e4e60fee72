"""Tests of tools with the unmodified packages `openai` and `anthropic` against a running server: calls that the model
must make, whole and streamed, results of tools, and refused requests."""

import json
import sys

from anthropic import Anthropic
from openai import OpenAI, UnprocessableEntityError

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "How warm it is.", "parameters": SCHEMA}}
TIME = {"type": "function", "function": {"name": "get_time"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
QUESTION = [{"role": "user", "content": "How warm is it?"}]


def check_arguments(arguments: dict) -> None:
    assert set(arguments) == {"city", "days"} and arguments["city"] in ("Paris", "Rome") and 1 <= arguments["days"] <= 9, arguments


def check_openai(client: OpenAI) -> None:
    ask = dict(model="demo", messages=QUESTION, tools=[WEATHER, TIME])
    whole = client.chat.completions.create(**ask, tool_choice=NAMED).choices[0]
    [call] = whole.message.tool_calls
    assert whole.finish_reason == "tool_calls" and whole.message.content is None, whole
    assert call.type == "function" and call.function.name == "get_weather" and call.id.startswith("call_"), call
    check_arguments(json.loads(call.function.arguments))

    single = client.chat.completions.create(**ask, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert [call.function.name in ("get_weather", "get_time") for call in single.message.tool_calls] == [True], single

    chunks = list(client.chat.completions.create(**ask, tool_choice=NAMED, stream=True))
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].id and deltas[0].function.name == "get_weather" and deltas[0].type == "function", deltas[0]
    assert all(delta.index == 0 for delta in deltas) and len(deltas) > 3, deltas
    assert all(delta.id is None and delta.function.name is None for delta in deltas[1:]), deltas
    check_arguments(json.loads("".join(delta.function.arguments for delta in deltas)))
    assert chunks[-1].choices[0].finish_reason == "tool_calls", chunks[-1]

    with client.chat.completions.stream(**ask, tool_choice=NAMED) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [event.name for event in done] == ["get_weather"] and final.finish_reason == "tool_calls", (done, final)

    # The results are sent back, and the model continues with them.
    messages = [*QUESTION, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "21"}]
    after = client.chat.completions.create(model="demo", messages=messages, tools=[WEATHER], max_tokens=10).choices[0]
    assert after.message.role == "assistant" and (after.message.content or after.message.tool_calls), after

    # The model need not call a tool that it may call.
    plain = [{"role": "user", "content": "What is 3 + 4?"}]
    nothing = client.chat.completions.create(model="demo", messages=plain, tools=[WEATHER], tool_choice="none", temperature=0)
    assert nothing.choices[0].message.content == "3 + 4 is 7." and nothing.choices[0].message.tool_calls is None, nothing
    auto = client.chat.completions.create(model="demo", messages=plain, tools=[TIME], temperature=0, max_tokens=20).choices[0]
    assert auto.finish_reason in ("stop", "length", "tool_calls"), auto

    # The model calls a tool or answers in the form.
    form = {"type": "json_schema", "json_schema": {"name": "days", "schema": {**SCHEMA, "properties": {"city": {"const": "Oslo"}, "days": {"const": 3}}}}}
    for seed in range(4):
        either = client.chat.completions.create(**ask, response_format=form, seed=seed, temperature=1).choices[0].message
        if either.tool_calls:
            assert either.content is None and either.tool_calls[0].function.name in ("get_weather", "get_time"), either
        else:
            assert json.loads(either.content) == {"city": "Oslo", "days": 3}, either

    try:
        client.chat.completions.create(**ask, tool_choice={"type": "function", "function": {"name": "nothing"}})
    except UnprocessableEntityError as error:
        assert "nothing" in error.message, error
    else:
        raise AssertionError("a function that is none of the tools was accepted")


def check_anthropic(client: Anthropic) -> None:
    tool = {"name": "get_weather", "description": "How warm it is.", "input_schema": SCHEMA}
    ask = dict(model="demo", max_tokens=100, messages=QUESTION, tools=[tool], extra_body={"temperature": 0})
    named = {"type": "tool", "name": "get_weather"}
    message = client.messages.create(**ask, tool_choice=named)
    [block] = message.content
    assert (message.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "get_weather"), message
    check_arguments(block.input)

    any_tool = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(**ask, tool_choice=any_tool) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(pieces) > 3 and final.stop_reason == "tool_use", (pieces, final)
    check_arguments(final.content[0].input)

    result = {"type": "tool_result", "tool_use_id": block.id, "content": "21"}
    messages = [*QUESTION, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(model="demo", max_tokens=10, messages=messages, tools=[tool])
    whole = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert after.content and whole(after.usage) > whole(message.usage), after


def main(url: str) -> None:
    check_openai(OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0))
    check_anthropic(Anthropic(base_url=url, api_key="-", max_retries=0))
    print("tools: ok")


if __name__ == "__main__":
    main(sys.argv[1])
