"""Tests of the unmodified `openai` package against a running server: chats and completions, whole and streamed, models,
errors."""

import asyncio
import sys

from openai import AsyncOpenAI, BadRequestError, OpenAI, UnprocessableEntityError

QUESTION = [{"role": "user", "content": "What is 3 + 4?"}]
ANSWER = "3 + 4 is 7."


def check_chat(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=30)
    choice = whole.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop"), whole
    assert whole.object == "chat.completion" and whole.id.startswith("chatcmpl-"), whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole

    options = dict(stream=True, stream_options={"include_usage": True})
    chunks = list(client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=30, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER, chunks
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop", chunks
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}), chunks[-1]

    cut = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=30, stop=" is")
    assert cut.choices[0].message.content == "3 + 4" and cut.choices[0].finish_reason == "stop", cut
    short = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_completion_tokens=2)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 2, short

    several = client.chat.completions.create(model=model, messages=QUESTION, n=2, seed=5, max_tokens=5)
    assert [choice.index for choice in several.choices] == [0, 1], several

    likely = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2)
    content = likely.choices[0].logprobs.content
    assert len(content) == 4 and all(len(token.top_logprobs) == 2 for token in content), content
    assert "".join(bytes(token.bytes).decode() for token in content) == "".join(token.token for token in content), content

    begun = [*QUESTION, {"role": "assistant", "content": "3 + 4 is"}]
    continued = client.chat.completions.create(model=model, messages=begun, temperature=0, max_tokens=10)
    assert continued.choices[0].message.content == " 7.", continued
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert client.chat.completions.create(model=model, messages=parts, temperature=0).choices[0].message.content == ANSWER

    with client.chat.completions.stream(model=model, messages=QUESTION, temperature=0, max_tokens=30) as stream:
        assert stream.get_final_completion().choices[0].message.content == ANSWER


def check_completions(client: OpenAI, model: str) -> None:
    prompt = "Once upon a time"
    whole = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=12)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12, whole
    text = whole.choices[0].text
    pieces = [chunk.choices[0].text for chunk in client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=12, stream=True)]
    assert "".join(pieces) == text and len(pieces) > 1, pieces
    both = client.completions.create(model=model, prompt=[prompt, "The dog"], temperature=0, max_tokens=12)
    assert both.choices[0].text == text and both.choices[1].index == 1, both
    echoed = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=12, echo=True, logprobs=1)
    assert echoed.choices[0].text == prompt + text, echoed
    read = client.completions.create(model=model, prompt=[1, 2, 3], max_tokens=0, echo=True, logprobs=2)
    assert read.usage.completion_tokens == 0 and [len(top) >= 2 for top in read.choices[0].logprobs.top_logprobs[1:]] == [True, True], read
    logprobs = echoed.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and len(logprobs.tokens) == len(logprobs.text_offset), logprobs


def check_errors(client: OpenAI, model: str) -> None:
    for stream in (False, True):
        for body in (dict(temperature=-1), dict(tools=[{"type": "web_search"}])):
            try:
                client.chat.completions.create(model=model, messages=QUESTION, stream=stream, **body)
            except UnprocessableEntityError as error:
                assert next(iter(body)) in error.message, error
                assert error.body["type"] == "invalid_request_error", error.body
            else:
                raise AssertionError(f"{body} was accepted")
        try:
            client.chat.completions.create(model=model, messages=QUESTION, stream=stream, max_tokens=100_000)
        except BadRequestError as error:
            assert error.code == "context_length_exceeded" and "100000 in the completion" in error.message, error
        else:
            raise AssertionError("100000 tokens were accepted")
    try:
        client.chat.completions.create(model=model, messages=[{"role": "nobody", "content": "x"}, {"role": "user", "content": "y"}])
    except BadRequestError:
        pass  # the template's own message, if it has one


async def check_async(url: str, model: str) -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    stream = await client.chat.completions.create(model=model, messages=QUESTION, temperature=0, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
    [model] = client.models.list().data
    check_chat(client, model.id)
    check_completions(client, model.id)
    check_errors(client, model.id)
    asyncio.run(check_async(url, model.id))
    print("openai: ok")


if __name__ == "__main__":
    main(sys.argv[1])
