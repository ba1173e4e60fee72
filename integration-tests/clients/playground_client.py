"""The playground in a real browser: a prompt is typed, tokens stream, a parameter is changed, an error is seen; screenshots.

Needs Chromium, and says that it is skipped where there is none.

    python playground_client.py URL [FOLDER_FOR_SCREENSHOTS]
"""

import pathlib
import re
import shutil
import sys

from playwright.sync_api import expect, sync_playwright

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


def main(url: str, folder: str | None) -> None:
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        print("playground: skipped: no Chromium")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1100, "height": 720}, permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        problems, asked = [], []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))

        def shot(name: str, width: int = 1100) -> None:
            if folder:
                page.set_viewport_size({"width": width, "height": 720})
                page.screenshot(path=pathlib.Path(folder) / f"{name}.png", full_page=True)
                page.set_viewport_size({"width": 1100, "height": 720})

        page.goto(f"{url}/playground")
        check_chat(page, shot)
        check_parameters(page)
        check_error(page, shot)
        check_completion(page, shot)
        assert all(address.startswith((url, "data:")) for address in asked), asked
        # The browser writes down the one answer that was an error on purpose.
        assert all("422" in problem for problem in problems) and len(problems) == 1, problems
        browser.close()
    print("playground: ok")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
