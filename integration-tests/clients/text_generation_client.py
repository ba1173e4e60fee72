"""Tests of TGI's own client `text_generation`, unmodified, against a running server: generate, generate_stream,
errors."""

import sys

from text_generation import Client
from text_generation.errors import ValidationError

PROMPT = "Once upon a time"


def main(url: str) -> None:
    client = Client(url, timeout=60)

    response = client.generate(PROMPT, max_new_tokens=20)
    assert response.details.generated_tokens == 20, response
    assert len(response.details.tokens) == 20, response
    assert response.generated_text == "".join(token.text for token in response.details.tokens), response

    events = list(client.generate_stream(PROMPT, max_new_tokens=20))
    assert [event.token.id for event in events] == [token.id for token in response.details.tokens], events
    assert events[-1].generated_text == response.generated_text, events
    assert all(event.generated_text is None for event in events[:-1]), events

    full = client.generate(PROMPT, max_new_tokens=5, return_full_text=True, decoder_input_details=True)
    assert full.generated_text.startswith(PROMPT), full
    assert full.details.prefill[0].logprob is None and full.details.prefill[1].logprob < 0, full

    sampled = [client.generate(PROMPT, do_sample=True, temperature=1.2, top_k=20, top_p=0.9, typical_p=0.9,
                               repetition_penalty=1.1, seed=7, max_new_tokens=20) for _ in range(2)]
    assert sampled[0].generated_text == sampled[1].generated_text, sampled
    assert sampled[0].details.seed == 7, sampled

    best = client.generate(PROMPT, do_sample=True, best_of=2, max_new_tokens=5)
    assert len(best.details.best_of_sequences) == 1, best

    for generate in (client.generate, lambda *args, **kwargs: list(client.generate_stream(*args, **kwargs))):
        try:
            generate(PROMPT, max_new_tokens=100_000)
        except ValidationError as error:
            assert "max_new_tokens" in str(error), error
        else:
            raise AssertionError("100000 new tokens were accepted")
    print("text_generation: ok")


if __name__ == "__main__":
    main(sys.argv[1])
