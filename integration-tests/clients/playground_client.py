"""The playground in a real browser: a prompt is typed, tokens stream, a parameter is changed, an error is seen; screenshots.

Needs Chromium, and says that it is skipped where there is none.

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
    shot("playground")

    # The conversation goes on.
    question.fill("What is the opposite of hot?")
    question.press("Enter")
    expect(messages).to_have_count(4)
    expect(messages.last.locator(".text")).to_have_text("The opposite of hot is cold.")


def check_parameters(page) -> None:
    page.get_by_label("Most new tokens").fill("2")
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
    # What was typed is not lost.
    expect(page.get_by_label("Message", exact=True)).to_have_value("Hello")
    shot("playground-error")
    page.get_by_label("Temperature").fill("0")


SCHEMA = '{"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["sum"], "additionalProperties": false}'
TOOLS = '[{"type": "function", "function": {"name": "add", "parameters": ' + SCHEMA + "}}]"


def check_schema(page, shot) -> None:
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Most new tokens").fill("60")
    page.get_by_label("JSON schema of the answer").fill('{"type": ')
    page.get_by_label("Message", exact=True).fill("What is 3 + 4?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("JSON schema of the answer: ")
    expect(page.locator("#messages li")).to_have_count(0)
    page.get_by_label("JSON schema of the answer").fill(SCHEMA)
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#stats")).to_contain_text("stop")
    answer = json.loads(page.locator("#messages .text").last.inner_text())
    assert 0 <= answer["sum"] <= 9, answer
    page.get_by_role("button", name="Copy as Python").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert '"additionalProperties": False' in copied, copied
    compile(copied, "copied", "exec")
    shot("playground-schema")
    page.get_by_label("JSON schema of the answer").fill("")


def check_tools(page, shot) -> None:
    page.get_by_role("button", name="Clear").click()
    # It may make several calls.
    page.get_by_label("Most new tokens").fill("300")
    page.get_by_label("Tools, as OpenAI lists them").fill(TOOLS)
    page.get_by_label("Choice of tools").select_option("required")
    page.get_by_label("Message", exact=True).fill("What is 3 + 4?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#stats")).to_contain_text("tool_calls")
    result = page.get_by_label(re.compile(r"^add\(\{"))
    expect(result.first).to_be_visible()
    for field in result.all():
        field.fill("7")
    shot("playground-tools")
    page.get_by_label("Choice of tools").select_option("none")
    with page.expect_request("**/v1/chat/completions") as sent:
        result.last.press("Enter")
    roles = [message["role"] for message in sent.value.post_data_json["messages"]]
    assert roles[:2] == ["user", "assistant"] and set(roles[2:]) == {"tool"}, roles
    expect(page.locator("#messages li")).to_have_count(3)
    expect(page.locator("#stats")).to_contain_text(re.compile("stop|length"))
    expect(result.first).to_be_disabled()
    page.get_by_label("Tools, as OpenAI lists them").fill("")


def check_completion(page, shot) -> None:
    page.get_by_label("Most new tokens").fill("60")
    page.get_by_label("Completion").check()
    page.get_by_label("Prompt").press("Control+Enter")
    expect(page.locator("#stats")).to_contain_text(re.compile(r"tokens/s · (length|stop)$"))
    text = page.locator("#continuation").inner_text()
    assert len(text) > 40, text
    page.get_by_role("button", name="Copy as curl").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("curl http://") and '"max_tokens":60' in copied, copied
    page.get_by_role("button", name="Copy as Python").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    compile(copied, "copied", "exec")
    shot("playground-narrow", width=390)


def check(page, shot) -> None:
    check_chat(page, shot)
    check_parameters(page)
    check_error(page, shot)
    check_schema(page, shot)
    check_tools(page, shot)
    check_completion(page, shot)


if __name__ == "__main__":
    with open_page("playground", *sys.argv[1:]) as opened:
        if opened:
            check(*opened)
