"""Drive Debian's Chromium in headless mode.

`tools/ensure-chromium.sh` installs it. Without it, the console tests are skipped, or fail in CI.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from tests.support.missing import missing
from tests.support.waiting import PATIENCE_S, wait_until

PHONE = (360, 740)
DESK = (1280, 900)
_FLAGS = (
    *("--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-extensions", "--force-device-scale-factor=1"),
    *("--hide-scrollbars", "--disable-features=Translate,OptimizationHints"),
)
PAGE_S = PATIENCE_S
_AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


class PageChrome(Chrome):
    """A browser whose `get` waits until the skeleton of a slow page is replaced by the page."""

    def get(self, url: str) -> None:
        super().get(url)
        wait_until(lambda: not self.find_elements(By.CSS_SELECTOR, "[data-pending]"), PAGE_S)


@contextmanager
def browser(*, size: tuple[int, int] = DESK, dark: bool = False) -> Iterator[Chrome]:
    """Start a browser with an empty profile, and stop it and its processes at the end."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing("chromium and chromedriver are not installed: run tools/ensure-chromium.sh")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in _FLAGS:
        options.add_argument(flag)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with TemporaryDirectory(prefix="penstock-chromium-") as profile:
        options.add_argument(f"--user-data-dir={profile}")
        found = PageChrome(options=options, service=Service(driver))
        try:
            found.set_page_load_timeout(PAGE_S)
            found.set_script_timeout(PAGE_S)
            resize(found, size, dark=dark)
            yield found
        finally:
            found.quit()


def resize(found: Chrome, size: tuple[int, int], *, dark: bool = False) -> None:
    """Set the page size in pixels, and the preference for dark or light mode."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    found.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    found.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def console_errors(found: Chrome) -> list[str]:
    """Return the errors and content security policy violations that the browser has logged since
    the last call.
    """
    entries: list[dict[str, Any]] = found.get_log("browser")
    return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]


def axe_problems(found: Chrome, axe: Path) -> list[str]:
    """Return the violations of WCAG 2.2 AA and of best practices that axe-core finds."""
    found.execute_script(axe.read_text() + "\nwindow.axe = axe;")
    result = found.execute_async_script(
        "const done = arguments[0];"
        f"axe.run(document, {{runOnly: {_AXE_TAGS}}})"
        ".then((found) => done(found.violations),"
        " (error) => done([{id: String(error), nodes: []}]))"
    )
    return [
        f"{item['id']}: {json.dumps([node['target'] for node in item['nodes'][:3]])}"
        for item in result
    ]


def send_form(found: Chrome, summary: str, **fields: str) -> None:
    """Open the section of the page with this summary, fill in its form and send it.

    fields: by name; for a list, the text to select.
    """
    (part,) = found.find_elements(By.XPATH, f"//details[summary[normalize-space()='{summary}']]")
    part.find_element(By.TAG_NAME, "summary").click()
    fill(part, **fields)


def fill(part: Chrome | WebElement, **fields: str) -> None:
    """Fill in the only form of a section, and send it."""
    for name, value in fields.items():
        field = part.find_element(By.NAME, name)
        if field.tag_name == "select":
            Select(field).select_by_visible_text(value)
        elif field.get_attribute("type") == "checkbox":
            field.click()
        else:
            field.send_keys(value)
    part.find_element(By.CSS_SELECTOR, "main form button, details form button").click()
