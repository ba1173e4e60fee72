"""Tests of the playground in a real browser: prompts, streamed tokens, parameters, errors, a full conversation, a
server that goes away; with screenshots.

Needs Chromium. Without it the script prints that it is skipped.

    python playground_client.py URL [FOLDER_FOR_SCREENSHOTS]
"""

import json
import re
import sys

from playwright.sync_api import expect

from browser import open_page

ANSWER = "3 + 4 is 7."


def check_chat(page, shot) -> None:
    expect(page.locator("#model")).to_contain_text("demo")
    page.get_by_label("Temperature").fill("0")
    question = page.get_by_label("Message", exact=True)
    question.fill("What is 3 + 4?")
    question.press("Enter")
    messages = page.locator("#messages li")
    expect(messages).to_have_count(2)
    expect(messages.last.locator(".text")).to_have_text(ANSWER)
    expect(page.locator("#stats")).to_contain_text("stop")
    expect(page.locator("#stats")).to_contain_text("first after")
    tokens = messages.last.locator(".token")
    assert tokens.count() > 3, tokens.count()
    tokens.first.hover()
    candidates = page.locator("#candidates")
    expect(candidates).to_be_visible()
    assert candidates.inner_text().count("%") == 5, candidates.inner_text()

    # The conversation continues.
    question.fill("What is the opposite of hot?")
    question.press("Enter")
    expect(messages).to_have_count(4)
    expect(messages.last.locator(".text")).to_have_text("The opposite of hot is cold.")


def is_in_view(locator) -> bool:
    return locator.evaluate("""element => {
        const { top, bottom } = element.getBoundingClientRect();
        return top >= 0 && bottom <= innerHeight;
    }""")


def ask(page, text: str) -> None:
    before = page.locator("#messages li").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator("#messages li")).to_have_count(before + 2)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def check_long_conversation(page, shot) -> None:
    """Checks that the newest answer and the composer are in view, that the page does not scroll for a reader who
    scrolled up, and that a full conversation continues."""
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Max new tokens").fill("60")
    paper = page.locator("#paper")
    for number in range(6):
        ask(page, f"What is {number} + 3?")
        assert is_in_view(page.locator("#messages li").last), f"answer {number}"
        assert is_in_view(page.get_by_label("Message", exact=True)), f"composer after {number}"
    expect(page.locator("#model")).to_contain_text(re.compile(r"\d+ of 1024 tokens"))
    shot("playground", is_whole=False)
    paper.evaluate("element => { element.scrollTop = 0; }")
    newest = page.get_by_role("button", name="Newest")
    expect(newest).to_be_visible()
    newest.click()
    expect(newest).to_be_hidden()
    assert is_in_view(page.locator("#messages li").last)
    paper.evaluate("element => { element.scrollTop = 0; }")
    expect(newest).to_be_visible()
    # A new answer does not move the page for a reader who scrolled up.
    page.evaluate("follow()")
    assert paper.evaluate("element => element.scrollTop") == 0

    # If the context has no room for the max new tokens, the answer uses the room that is left.
    page.get_by_label("Max new tokens").fill("1000")
    ask(page, "What is 3 + 4?")
    expect(page.locator("#stats")).to_contain_text("reduced to fit the context")
    expect(page.get_by_role("alert")).to_be_hidden()
    # Now the conversation itself does not fit.
    page.get_by_label("Message", exact=True).fill("red " * 1000)
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("tokens")
    assert is_in_view(page.get_by_role("alert")) and is_in_view(page.get_by_role("button", name="Send"))
    page.get_by_label("Message", exact=True).fill("What is 3 + 4?")
    before = page.locator("#messages li").count()
    page.get_by_role("button", name=re.compile("oldest messages")).click()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#messages .text").last).to_have_text(ANSWER)
    assert page.locator("#messages li").count() < before
    page.get_by_label("Max new tokens").fill("256")


def check_speed(page) -> None:
    """Checks that no speed is shown for tokens that arrived in one network read."""
    for count, took in ((8, 1), (8, 40), (9, 100)):
        text = page.evaluate(f"""() => {{
            const pace = new Pace();
            pace.add(1, pace.began + 5);
            for (let number = 1; number < {count}; number += 1) pace.add(1, pace.began + 5 + {took} * number / {count - 1});
            return String(pace);
        }}""")
        expected = " · 80.0 tokens/s" if took == 100 else ""
        assert text == f"{count} tokens in {5 + took} ms · first after 5 ms{expected}", text


def check_what_is_kept(page) -> None:
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("API key").fill("secret")
    page.get_by_label("API key").blur()
    page.reload()
    expect(page.get_by_label("Temperature")).to_have_value("0.25")
    expect(page.get_by_label("API key")).to_have_value("secret")
    page.get_by_role("link", name="API").click()
    expect(page.get_by_label("API key")).to_have_value("secret")
    page.get_by_role("link", name="playground").click()
    page.get_by_label("API key").fill("")
    page.get_by_label("API key").blur()
    page.get_by_label("Temperature").fill("0")


def check_a_server_that_is_gone(page) -> None:
    page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    page.get_by_label("Message", exact=True).fill("Hello")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Hello")
    page.unroute("**/v1/**")


def check_parameters(page) -> None:
    page.get_by_label("Max new tokens").fill("2")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Message", exact=True).fill("What is 3 + 4?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#stats")).to_contain_text("2 tokens")
    expect(page.locator("#stats")).to_contain_text("length")


def check_error(page, shot) -> None:
    page.get_by_label("Temperature").fill("-1")
    page.get_by_label("Message", exact=True).fill("Hello")
    page.get_by_role("button", name="Send").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("`temperature` must be strictly positive")
    # The typed text is not lost.
    expect(page.get_by_label("Message", exact=True)).to_have_value("Hello")
    shot("playground-error")
    page.get_by_label("Temperature").fill("0")


SCHEMA = '{"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["sum"], "additionalProperties": false}'
TOOLS = '[{"type": "function", "function": {"name": "add", "parameters": ' + SCHEMA + "}}]"


def check_schema(page, shot) -> None:
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Max new tokens").fill("60")
    page.get_by_label("JSON schema for the response").fill('{"type": ')
    page.get_by_label("Message", exact=True).fill("What is 3 + 4?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("JSON schema for the response: ")
    expect(page.locator("#messages li")).to_have_count(0)
    page.get_by_label("JSON schema for the response").fill(SCHEMA)
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#stats")).to_contain_text("stop")
    answer = json.loads(page.locator("#messages .text").last.inner_text())
    assert 0 <= answer["sum"] <= 9, answer
    page.get_by_role("button", name="Copy as Python").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert '"additionalProperties": False' in copied, copied
    compile(copied, "copied", "exec")
    shot("playground-schema")
    page.get_by_label("JSON schema for the response").fill("")


def check_tools(page, shot) -> None:
    page.get_by_role("button", name="Clear").click()
    # The model may make several calls.
    page.get_by_label("Max new tokens").fill("300")
    page.get_by_label("Tools, a JSON list as in OpenAI's API").fill(TOOLS)
    page.get_by_label("Tool choice").select_option("required")
    page.get_by_label("Message", exact=True).fill("What is 3 + 4?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#stats")).to_contain_text("tool_calls")
    result = page.get_by_label(re.compile(r"^add\(\{"))
    expect(result.first).to_be_visible()
    for field in result.all():
        field.fill("7")
    shot("playground-tools")
    page.get_by_label("Tool choice").select_option("none")
    with page.expect_request("**/v1/chat/completions") as sent:
        result.last.press("Enter")
    roles = [message["role"] for message in sent.value.post_data_json["messages"]]
    assert roles[:2] == ["user", "assistant"] and set(roles[2:]) == {"tool"}, roles
    expect(page.locator("#messages li")).to_have_count(3)
    expect(page.locator("#stats")).to_contain_text(re.compile("stop|length"))
    expect(result.first).to_be_disabled()
    page.get_by_label("Tools, a JSON list as in OpenAI's API").fill("")


def check_completion(page, shot) -> None:
    page.get_by_label("Max new tokens").fill("60")
    page.get_by_label("Completion").check()
    page.get_by_label("Prompt").press("Control+Enter")
    expect(page.locator("#stats")).to_contain_text(re.compile(r"^60 tokens in \d+ ms · first after \d+ ms.* · length$"))
    text = page.locator("#continuation").inner_text()
    assert len(text) > 40, text
    page.get_by_role("button", name="Copy as curl").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("curl http://") and '"max_tokens":60' in copied, copied
    page.get_by_role("button", name="Copy as Python").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    compile(copied, "copied", "exec")
    shot("playground-narrow", width=390, is_whole=False)


def check(page, shot) -> None:
    check_chat(page, shot)
    check_parameters(page)
    check_error(page, shot)
    check_schema(page, shot)
    check_tools(page, shot)
    check_completion(page, shot)
    page.get_by_label("Chat").check()
    check_long_conversation(page, shot)
    check_speed(page)
    check_what_is_kept(page)
    check_a_server_that_is_gone(page)


if __name__ == "__main__":
    with open_page("playground", *sys.argv[1:]) as opened:
        if opened:
            check(*opened)
