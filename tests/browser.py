"""A browser without a window, for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest


def started_browser() -> Iterator[object]:
    """A driver of selenium's; skips the test where there is no browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver_program:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # In a container, there are neither a sandbox nor a large /dev/shm.
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_program))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()
