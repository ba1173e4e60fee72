"""Tests of the responses of the unmodified `openai` package against a running server: whole, streamed, parsed, with
tools, errors."""

import sys

from openai import BadRequestError, OpenAI, UnprocessableEntityError
from pydantic import BaseModel, Field

QUESTION = "What is 3 + 4?"
ANSWER = "3 + 4 is 7."
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Says how warm it is.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Sum(BaseModel):
    left: int = Field(ge=0, le=9)
    right: int = Field(ge=0, le=9)


def check_text(client: OpenAI) -> None:
    whole = client.responses.create(model="demo", input=QUESTION, temperature=0, metadata={"a": "b"})
    assert (whole.output_text, whole.status, whole.metadata) == (ANSWER, "completed", {"a": "b"}), whole
    assert whole.output[0].type == "message" and whole.output[0].role == "assistant", whole
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens, whole

    items = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    assert client.responses.create(model="demo", input=items, temperature=0).output_text == ANSWER
    with_system = client.responses.create(model="demo", input=QUESTION, instructions="Be brief.", temperature=0)
    assert with_system.usage.input_tokens > whole.usage.input_tokens and with_system.instructions == "Be brief.", with_system
    longer = [*items, *whole.output, {"role": "user", "content": "What is the opposite of hot?"}]
    answer = client.responses.create(model="demo", input=longer, temperature=0)
    assert answer.output_text == "The opposite of hot is cold.", answer

    short = client.responses.create(model="demo", input=QUESTION, max_output_tokens=2)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens"), short


def check_stream(client: OpenAI) -> None:
    events = list(client.responses.create(model="demo", input=QUESTION, temperature=0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER, events
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed"), events
    with client.responses.stream(model="demo", input=QUESTION, temperature=0) as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert texts[-1] == ANSWER and final.output_text == ANSWER and final.status == "completed", (texts, final)


def check_tools(client: OpenAI) -> None:
    choice = {"type": "function", "name": "get_weather"}
    whole = client.responses.create(model="demo", input="Warm?", tools=[WEATHER], tool_choice=choice)
    [call] = whole.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed") and call.call_id, call
    with client.responses.stream(model="demo", input="Warm?", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        [streamed] = stream.get_final_response().output
    assert "".join(pieces) == streamed.arguments and len(pieces) > 3, pieces
    assert streamed.parsed_arguments["city"] in ("Paris", "Rome") and 1 <= streamed.parsed_arguments["days"] <= 9, streamed
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    items = [{"role": "user", "content": "Warm?"}, call, result]
    answer = client.responses.create(model="demo", input=items, tools=[WEATHER], tool_choice="none", max_output_tokens=20)
    assert answer.output[0].type == "message", answer


def check_formats(client: OpenAI) -> None:
    parsed = client.responses.parse(model="demo", input=QUESTION, text_format=Sum).output_parsed
    assert isinstance(parsed, Sum) and 0 <= parsed.left <= 9, parsed


def check_errors(client: OpenAI) -> None:
    for name, body in [
        ("previous_response_id", dict(previous_response_id="resp_1")),
        ("background", dict(background=True)),
        ("web_search", dict(tools=[{"type": "web_search"}])),
        ("maximum context length", dict(max_output_tokens=100_000)),
    ]:
        for stream in (False, True):
            try:
                client.responses.create(model="demo", input=QUESTION, stream=stream, **body)
            except (BadRequestError, UnprocessableEntityError) as error:
                assert name in error.message, error
            else:
                raise AssertionError(f"{body} was accepted")


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    check_text(client)
    check_stream(client)
    check_tools(client)
    check_formats(client)
    check_errors(client)
    print("responses: ok")


if __name__ == "__main__":
    main(sys.argv[1])
