"""The `anthropic` package, unmodified, against a running server: messages, whole and streamed, tokens counted, models,
errors."""

import sys

from anthropic import Anthropic, BadRequestError, NotFoundError

QUESTION = [{"role": "user", "content": "What is 3 + 4?"}]
ANSWER = "3 + 4 is 7."
# Newer versions of the package have no such parameter.
GREEDY = dict(extra_body={"temperature": 0})


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
    assert count.input_tokens == with_system.usage.input_tokens > message.usage.input_tokens, (count, with_system)

    # As many as the largest models make: what is left of the context here.
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
    print("anthropic: ok")


if __name__ == "__main__":
    main(sys.argv[1])
