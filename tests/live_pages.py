"""Pages that a server answers, in a headless Chromium driven by Playwright: what a page does while others work."""

import contextlib
import time
from dataclasses import dataclass, field

import pytest
from web_pages import CHROMIUM, CONTRAST, NO_CHROMIUM

QUIET = ("background-networking", "component-update", "sync", "gpu", "dev-shm-usage", "quic")

NAMED = {"button", "textbox", "spinbutton", "DisclosureTriangle", "image", "region", "log", "table"}
"""Roles of what can be used or looked at: each must have a name for those who listen."""


@contextlib.contextmanager
def chromium():
    """A browser for the time of a `with`. Never one that Playwright would fetch."""
    if not CHROMIUM:
        pytest.skip(NO_CHROMIUM)
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(eq=False)
class LivePage:
    """A page of a server, in a profile of its own, and what the browser says of it."""

    browser: object
    url: str
    width: int = 1280
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __enter__(self):
        self.context = self.browser.new_context(viewport={"width": self.width, "height": 1000}, color_scheme="light")
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(self.url)
        return self

    def __exit__(self, *error):
        self.context.close()

    def js(self, expression):
        return self.page.evaluate(expression)

    def text(self, name):
        return self.page.locator(f"#{name}").text_content()

    def texts(self, selector):
        return self.page.locator(selector).all_text_contents()

    def key(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def wait(self, holds, what="it"):
        """Until `holds()`, looked at from here: the page's policy allows no text to be run as a script inside it."""
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not come to be"
            self.page.wait_for_timeout(20)

    def unnamed(self):
        """What can be used, and has no name."""
        session = self.context.new_cdp_session(self.page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        session.detach()
        named = [node for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED]
        assert len(named) > 10, "they were looked at"
        return [node["role"]["value"] for node in named if not node.get("name", {}).get("value", "").strip()]

    def low_contrast(self):
        return self.page.evaluate(f"() => {{{CONTRAST}}}")
