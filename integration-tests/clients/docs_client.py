"""Tests of the page of the OpenAPI document in a real browser: it shows routes and types, and an example can be sent.

    python docs_client.py URL [FOLDER_FOR_SCREENSHOTS]
"""

import sys

from playwright.sync_api import expect

from browser import open_page


def check(page, shot) -> None:
    expect(page.locator("#title")).to_contain_text("Hilo")
    for name in ("docs", "playground"):
        with page.expect_response("**/" + name) as found:
            page.goto(page.url.rsplit("/", 1)[0] + f"/{name}/")
        assert found.value.ok and page.url.endswith(f"/{name}"), page.url
    root = page.url.rsplit("/", 1)[0]
    page.goto(root + "/")
    expect(page.locator("#model")).to_contain_text("demo")
    page.goto(root + "/docs")
    routes = page.locator("#routes details")
    assert routes.count() > 25, routes.count()
    assert page.locator("#types details").count() > 20
    chat = routes.filter(has=page.locator(".path").get_by_text("/v1/chat/completions", exact=True))
    chat.locator("summary").click()
    expect(chat).to_contain_text("text/event-stream")
    body = chat.locator("table").first
    assert body.locator("td").first.inner_text() == "application/json", body.inner_text()
    # The title is not repeated, and no backtick is shown.
    assert chat.inner_text().count("The next message of a conversation") == 1, chat.inner_text()
    assert "`" not in page.inner_text("body")
    expect(chat).to_contain_text("events, whose data is ChatCompletionChunk as JSON")
    chat.get_by_role("button", name="Send").click()
    answer = chat.locator("pre")
    expect(answer).to_contain_text("200 OK")
    expect(answer).to_contain_text('"finish_reason":"stop"')
    shot("docs", is_whole=False)
    chat.get_by_role("button", name="Show as curl").click()
    expect(answer).to_contain_text("curl http://")
    # A link to a type opens it.
    chat.get_by_role("link", name="ChatCompletionChunk").click()
    expect(page.locator("#type-ChatCompletionChunk table")).to_be_visible()

    wrong = routes.filter(has=page.locator(".path").get_by_text("/generate", exact=True))
    wrong.locator("summary").click()
    wrong.get_by_label("Body").fill("{")
    wrong.get_by_role("button", name="Send").click()
    expect(wrong.locator("pre")).to_contain_text("400 Bad Request")


if __name__ == "__main__":
    with open_page("docs", *sys.argv[1:]) as opened:
        if opened:
            check(*opened)
