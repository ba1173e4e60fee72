"""The `instructor` package, unmodified, against a running server: objects of a class from OpenAI's and Anthropic's API, by tools and
by schemas, whole, in parts and asynchronously. Modes that leave the form of the answer to the model (JSON, MD_JSON) ask for more
than the demo model can do."""

import asyncio
import sys

import anthropic
import instructor
import openai
from instructor import Mode
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """The weather in a city."""

    city: str = Field(pattern="^(Paris|Rome)$")
    days: int = Field(ge=1, le=9)
    is_warm: bool


ASK = dict(model="demo", messages=[{"role": "user", "content": "How warm is it in Rome?"}], max_retries=0)
OPENAI_MODES = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.FUNCTIONS, Mode.RESPONSES_TOOLS)


def check(weather: Weather, mode: str) -> None:
    assert type(weather).__name__.endswith("Weather") and weather.city in ("Paris", "Rome") and 1 <= weather.days <= 9, (mode, weather)


def main(url: str) -> None:
    server = dict(base_url=f"{url}/v1", api_key="-", max_retries=0)
    for mode in OPENAI_MODES:
        client = instructor.from_openai(openai.OpenAI(**server), mode=mode)
        check(client.create(response_model=Weather, max_tokens=200, **ASK), mode.name)
    for mode in (Mode.TOOLS,):
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
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=url, api_key="-", max_retries=0))
    check(client.create(response_model=Weather, max_tokens=4096, **ASK), "from_anthropic")
    print(f"instructor: ok: {', '.join(mode.name for mode in OPENAI_MODES)}, from_provider, from_anthropic")


if __name__ == "__main__":
    main(sys.argv[1])
