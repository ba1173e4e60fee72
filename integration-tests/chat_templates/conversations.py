"""The conversations to render: all kinds that clients send, and some that templates refuse."""

USER = {"role": "user", "content": "What is the weather in Paris?"}
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
ANSWER = {"role": "assistant", "content": "It is sunny, 21 °C."}
ODD_TEXT = "<b>\"quotes\" & 'more'</b>\n\tñ 漢字 🦜‍ \\n {{ not_jinja }} {% raw %} </s><|im_end|> \u2028"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says what the weather is <now>.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City & country, e.g. \"Paris, France\""},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"day": {"type": "integer", "minimum": 1}}},
                    "minItems": 1,
                },
                "threshold": {"type": ["number", "null"], "default": None, "maximum": 99.5},
                "exact": {"anyOf": [{"type": "boolean"}, {"type": "string"}], "default": False},
            },
            "required": ["location"],
            "additionalProperties": False,
        },
    },
}
TIME = {
    "type": "function",
    "function": {"name": "get_time", "description": "Zeit 🕰", "parameters": {"type": "object", "properties": {}}},
}
TINY = {
    "type": "function",
    "function": {
        "name": "wait",
        "description": "Waits.",
        "parameters": {"type": "object", "properties": {"seconds": {"type": "number", "minimum": 1e-05, "maximum": 1e16}}},
    },
}


def call(call_id: str, name: str, arguments: object) -> dict:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


PARIS = call("call00001", "get_weather", {"location": "Paris, \"là\"", "days": [{"day": 1}], "exact": True, "threshold": 0.5})
NOW = call("call00002", "get_time", {})
PARIS_AS_TEXT = call("call00001", "get_weather", "{\"location\": \"Paris\"}")
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"temperature\": 21.5}"}
TIME_RESULT = {"role": "tool", "name": "get_time", "tool_call_id": "call00002", "content": "12:00 <é>"}


def calls(*tool_calls: dict, **fields: object) -> dict:
    return {"role": "assistant", "content": "", "tool_calls": list(tool_calls), **fields}


def conversation(*messages: dict, tools=None, documents=None, ending="generation_prompt", **variables) -> dict:
    return {
        "messages": list(messages), "tools": tools, "documents": documents, "ending": ending, "variables": variables,
    }


CONVERSATIONS = {
    "single turn": conversation(USER),
    "no generation prompt": conversation(USER, ANSWER, ending="conversation"),
    "system": conversation(SYSTEM, USER),
    "many turns": conversation(SYSTEM, USER, ANSWER, {"role": "user", "content": "And in Rome?"}, ANSWER, USER),
    "white space": conversation(
        {"role": "system", "content": "  \n be brief \n"}, {"role": "user", "content": "\n\n hi \t\n"},
        {"role": "assistant", "content": "  ho  \n"}, {"role": "user", "content": " "},
    ),
    "odd characters": conversation({"role": "system", "content": ODD_TEXT}, {"role": "user", "content": ODD_TEXT}),
    "empty content": conversation({"role": "system", "content": ""}, {"role": "user", "content": ""}),
    "tools": conversation(USER, tools=[WEATHER, TIME]),
    "a tiny number": conversation(USER, tools=[TINY]),
    "tools and system": conversation(SYSTEM, USER, tools=[WEATHER]),
    "a call and its result": conversation(USER, calls(PARIS), RESULT, tools=[WEATHER, TIME]),
    "a call without content": conversation(
        USER, {"role": "assistant", "content": None, "tool_calls": [PARIS]}, RESULT, ANSWER, USER, tools=[WEATHER],
    ),
    "a call with arguments as text": conversation(SYSTEM, USER, calls(PARIS_AS_TEXT), RESULT, tools=[WEATHER]),
    "two calls": conversation(
        SYSTEM, USER, calls(PARIS, NOW, content="Let me see."), RESULT, TIME_RESULT, ANSWER,
        {"role": "user", "content": "Thanks"}, tools=[WEATHER, TIME],
    ),
    "calls without tools": conversation(USER, calls(PARIS), RESULT, ANSWER, USER),
    "continued": conversation(SYSTEM, USER, {"role": "assistant", "content": "It is"}, ending="final_message"),
    "continued after a space": conversation(USER, {"role": "assistant", "content": "It is: "}, ending="final_message"),
    "thinking": conversation(SYSTEM, USER, enable_thinking=True, thinking=True),
    "no thinking": conversation(USER, ANSWER, USER, enable_thinking=False, thinking=False, reasoning_effort="low"),
    "thoughts": conversation(
        USER, {**ANSWER, "reasoning_content": "Hm.\nParis?"}, {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, USER,
    ),
    "thoughts and calls": conversation(
        USER, calls(PARIS, reasoning_content="I need the weather."), RESULT, tools=[WEATHER], enable_thinking=True,
    ),
    "thoughts of an earlier turn": conversation(
        USER, calls(PARIS, reasoning_content="The weather?"), RESULT, {**ANSWER, "reasoning": "Sunny."}, USER,
        calls(NOW, thinking="The time?"), TIME_RESULT, tools=[WEATHER, TIME], reasoning_effort="high",
    ),
    "parts": conversation(
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "World"}]},
    ),
    "documents": conversation(USER, documents=[{"title": "Paris <1>", "text": "It rains."}, {"title": "b", "text": "c"}]),
    "two of one role": conversation(USER, USER, ANSWER, ANSWER),
    "assistant first": conversation(ANSWER, USER),
    "system last": conversation(USER, ANSWER, SYSTEM),
    "unknown role": conversation({"role": "wizard", "content": "abracadabra"}, USER),
    "developer": conversation({"role": "developer", "content": "Be brief."}, USER, tools=[TIME]),
    "a date": conversation(SYSTEM, USER, date_string="01 Jan 2025", tools_in_user_message=False, tools=[TIME]),
}
