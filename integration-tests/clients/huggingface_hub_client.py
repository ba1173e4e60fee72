"""`huggingface_hub.InferenceClient`, text_generation and chat_completion, unmodified, against a running server: whole, streamed, errors."""

import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

PROMPT = "Once upon a time"


def main(url: str) -> None:
    client = InferenceClient(model=url, timeout=60)

    # As with TGI, the route `/` repeats the prompt unless it is told not to.
    full = client.text_generation(PROMPT, max_new_tokens=20)
    text = client.text_generation(PROMPT, max_new_tokens=20, return_full_text=False)
    assert full == PROMPT + text, (full, text)

    output = client.text_generation(PROMPT, max_new_tokens=20, return_full_text=False, details=True)
    assert output.generated_text == text, output
    assert output.details.finish_reason == "length" and output.details.generated_tokens == 20, output

    pieces = list(client.text_generation(PROMPT, max_new_tokens=20, stream=True))
    assert "".join(pieces) == text, pieces

    sampled = [client.text_generation(PROMPT, max_new_tokens=20, do_sample=True, temperature=1.3, seed=3) for _ in range(2)]
    assert sampled[0] == sampled[1], sampled

    question = [{"role": "user", "content": "What is 3 + 4?"}]
    answer = client.chat_completion(question, temperature=0, max_tokens=30)
    assert answer.choices[0].message.content == "3 + 4 is 7." and answer.choices[0].finish_reason == "stop", answer
    deltas = client.chat_completion(question, temperature=0, max_tokens=30, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in deltas) == "3 + 4 is 7."

    for stream in (False, True):
        try:
            list(client.text_generation(PROMPT, max_new_tokens=100_000, stream=stream))
        except ValidationError as error:
            assert "max_new_tokens" in str(error), error
        else:
            raise AssertionError("100000 new tokens were accepted")
    print("huggingface_hub: ok")


if __name__ == "__main__":
    main(sys.argv[1])
