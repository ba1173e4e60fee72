"""Tests of a page of another origin in Chromium. It sends requests as the JavaScript packages of OpenAI and Anthropic
do there: with their headers, which the browser sends only if the server has allowed them in its reply to a preflight
request."""

import contextlib
import http.server
import shutil
import sys
import threading

from playwright.sync_api import Page, sync_playwright

from browser import say_skipped

PLATFORM = {
    "x-stainless-lang": "js", "x-stainless-package-version": "6.1.0", "x-stainless-os": "Linux", "x-stainless-arch": "x64",
    "x-stainless-runtime": "browser:chrome", "x-stainless-runtime-version": "141.0.0", "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600", "x-stainless-helper-method": "stream", "x-stainless-poll-helper": "true",
}
OPENAI = {**PLATFORM, "authorization": "Bearer -", "openai-organization": "org", "openai-project": "project", "openai-beta": "assistants=v2"}
ANTHROPIC = {
    **PLATFORM, "x-api-key": "-", "anthropic-version": "2023-06-01", "anthropic-beta": "tools-2024-04-04",
    "anthropic-dangerous-direct-browser-access": "true", "idempotency-key": "stainless-node-retry-1",
}
BODY = {"model": "demo", "messages": [{"role": "user", "content": "What is 3 + 4?"}], "max_tokens": 30, "temperature": 0}
FETCH = """async ([url, headers, body]) => {
    const answer = await fetch(url, {method: "POST", headers: {"content-type": "application/json", ...headers}, body: JSON.stringify(body)});
    return {status: answer.status, request_id: answer.headers.get("x-request-id"), json: await answer.json()};
}"""


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another origin</title>")

    def log_message(self, *_arguments: object) -> None:
        pass


@contextlib.contextmanager
def another_origin():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def check(page: Page, url: str) -> None:
    chat = page.evaluate(FETCH, [f"{url}/v1/chat/completions", OPENAI, BODY])
    assert chat["status"] == 200 and chat["json"]["choices"][0]["message"]["content"] == "3 + 4 is 7.", chat
    message = page.evaluate(FETCH, [f"{url}/v1/messages", ANTHROPIC, BODY])
    assert message["status"] == 200 and message["json"]["content"][0]["text"] == "3 + 4 is 7.", message
    assert chat["request_id"] and message["request_id"], (chat, message)
    refused = page.evaluate(FETCH, [f"{url}/v1/messages", ANTHROPIC, {**BODY, "temperature": -1}])
    assert refused["status"] == 422 and refused["json"]["type"] == "error", "a page may read why it is refused"


def main(url: str) -> None:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        say_skipped("browser_sdk", "no Chromium")
        return
    with another_origin() as origin, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(origin)
        check(page, url)
        browser.close()
    print("browser_sdk: ok")


if __name__ == "__main__":
    main(sys.argv[1])
