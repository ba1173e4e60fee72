"""Opens a page of the server in Chromium. The page may send requests only to this server, and its console may contain
only intended errors."""

import contextlib
import os
import pathlib
import shutil

from playwright.sync_api import sync_playwright

SIZE = {"width": 1100, "height": 720}


def say_skipped(name: str, reason: str) -> None:
    """Prints that a test is skipped, and appends a line to the file that `HILO_SKIPS` names, as tests in Rust do."""
    print(f"{name}: skipped: {reason}")
    if path := os.environ.get("HILO_SKIPS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{name}\t{reason}\n")


@contextlib.contextmanager
def open_page(name: str, url: str, folder: str | None = None):
    """Yields the page `/name`, and a function that takes a screenshot if a folder is given. Yields None without a browser."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        say_skipped(name, "no Chromium")
        yield None
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport=SIZE, permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        problems, asked = [], []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))

        def shot(name: str, width: int = SIZE["width"], is_whole: bool = True) -> None:
            if folder:
                page.set_viewport_size({**SIZE, "width": width})
                page.screenshot(path=pathlib.Path(folder) / f"{name}.png", full_page=is_whole)
                page.set_viewport_size(SIZE)

        page.goto(f"{url}/{name}")
        yield page, shot
        assert all(address.startswith((url, "data:")) for address in asked), asked
        # The browser logs each intended error response, and each request while the server was stopped on purpose.
        on_purpose = ("the server responded with a status of 4", "net::ERR_CONNECTION_REFUSED")
        assert problems and all(any(word in problem for word in on_purpose) for problem in problems), problems
        browser.close()
    print(f"{name}: ok")
