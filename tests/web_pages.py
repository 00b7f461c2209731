"""Web pages in a headless Chromium: what the tests of all pages share."""

import json
import re
import shutil

import pytest

HOSTILE = "</script><script>document.title='taken'</script><!-- \"'`\\ & {{DATA}} שלום 👩‍👩‍👧 \x07\x1b\x00 \u202e"


def embedded(html):
    """The data that a page carries, read as a browser reads it: up to the first end of a script."""
    data = re.search(r'<script type="application/json" id="\w+">(.*?)</script>', html, re.DOTALL)
    assert data, "the page has no data"
    return json.loads(data[1])


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")


NO_CHROMIUM = "the page is tried in Chromium: install chromium and chromium-driver (chromedriver) to run this"


def start_browser(profile):
    """A headless Chromium that logs its console and its requests; its files are in the directory `profile`."""
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip(NO_CHROMIUM)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    quiet = ("background-networking", "component-update", "sync", "gpu", "dev-shm-usage")
    for flag in ("headless=new", "no-sandbox", "no-first-run", *(f"disable-{name}" for name in quiet)):
        options.add_argument(f"--{flag}")
    options.add_argument("--window-size=1280,1000")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))


class OpenPage:
    """A page, open in the browser."""

    def __init__(self, browser, file):
        self.browser = browser
        self.file = file
        self.data = embedded(file.read_text(encoding="utf-8"))
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.prefer("light")
        browser.get("about:blank")
        for log in ("browser", "performance"):
            browser.get_log(log)
        browser.get(file.as_uri())

    def js(self, expression):
        return self.browser.execute_script(f"return {expression}")

    def text(self, name):
        return self.js(f"document.getElementById('{name}').textContent")

    def click(self, name):
        self.browser.find_element("id", name).click()

    def press(self, key):
        self.browser.find_element("tag name", "body").send_keys(key)

    def prefer(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def wait(self, condition, seconds=30):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, seconds, poll_frequency=0.02).until(lambda _: condition())

    def narrow(self, width):
        """As on a phone."""
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": True}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def complaints(self):
        """What the browser has written to its console."""
        return self.browser.get_log("browser")

    def addresses(self):
        """What the browser has asked for."""
        events = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        sent = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
        return {url for url in sent if not url.startswith("data:")}

    def low_contrast(self):
        """Texts that are hard to read on their ground: below a contrast of 4.5."""
        return self.browser.execute_script(CONTRAST)

    def unnamed_controls(self):
        """What can be used, and has no name for those who listen."""
        return [
            element.get_attribute("outerHTML")
            for element in self.browser.find_elements("css selector", "button, input, select, svg[role], [role=slider]")
            if element.is_displayed() and not element.accessible_name
        ]


CONTRAST = """
const luminance = (text) => {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
    .map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (e) => {
  for (let at = e; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
};
const low = [];
const texts = "p, b, strong, span, h1, h2, h3, small, bdi, dd, dt, li, button, summary, label, th, td";
for (const e of document.querySelectorAll(texts)) {
  if (!e.textContent.trim() || !e.checkVisibility({visibilityProperty: true})) continue;
  const [a, b] = [luminance(getComputedStyle(e).color), luminance(ground(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) low.push([e.tagName, e.className, e.textContent.slice(0, 20), ratio]);
}
return low;
"""
