"""Tests of the unmodified `langchain-openai` package against a running server: chats, whole and streamed, tools,
structured output."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

QUESTION = "What is 3 + 4?"
ANSWER = "3 + 4 is 7."


class Sum(BaseModel):
    """Two numbers."""

    left: int = Field(ge=0, le=9)
    right: int = Field(ge=0, le=9)


@tool
def get_weather(days: int) -> str:
    """How warm it is."""
    return "21"


def main(url: str) -> None:
    server = dict(model="demo", base_url=f"{url}/v1", api_key="-", max_retries=0, temperature=0)
    chat = ChatOpenAI(**server)
    whole = chat.invoke(QUESTION)
    assert whole.content == ANSWER and whole.usage_metadata["output_tokens"] == 9, whole
    assert whole.response_metadata["finish_reason"] == "stop", whole
    pieces = list(chat.stream(QUESTION))
    assert "".join(piece.content for piece in pieces) == ANSWER and len(pieces) > 3, pieces
    assert [message.content for message in chat.batch([QUESTION, QUESTION])] == [ANSWER, ANSWER]

    calling = chat.bind_tools([get_weather], tool_choice="get_weather")
    message = calling.invoke("Warm?")
    [call] = message.tool_calls
    assert call["name"] == "get_weather" and isinstance(call["args"]["days"], int) and not message.invalid_tool_calls, message
    streamed = None
    for piece in calling.stream("Warm?"):
        streamed = piece if streamed is None else streamed + piece
    [call] = streamed.tool_calls
    assert call["name"] == "get_weather" and isinstance(call["args"]["days"], int), streamed
    after = chat.invoke([HumanMessage("Warm?"), message, ToolMessage("21", tool_call_id=message.tool_calls[0]["id"])], max_tokens=10)
    assert after.type == "ai", after

    for method in ("json_schema", "function_calling"):
        answer = chat.with_structured_output(Sum, method=method).invoke(QUESTION)
        assert isinstance(answer, Sum), (method, answer)

    newer = ChatOpenAI(**server, use_responses_api=True)
    assert newer.invoke(QUESTION).text == ANSWER
    assert "".join(piece.text for piece in newer.stream(QUESTION)) == ANSWER

    text = OpenAI(model="demo", base_url=f"{url}/v1", api_key="-", temperature=0, max_tokens=12)
    assert text.invoke("Once upon a time"), text
    print("langchain: ok")


if __name__ == "__main__":
    main(sys.argv[1])
