"""Chromium without a window, on the built site as files: no server runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SITE = Path(__file__).parent.parent.parent / "site"
WIDE, NARROW = 1280, 400


@contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """A driver of Selenium's, with more arguments for the browser; the programs are Debian's."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    own = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
    for argument in own + arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: Any, page: str, width: int = WIDE, scheme: str = "light") -> None:
    """A page of the site in a window so wide, on a machine set to light or dark."""
    dress(driver, width, scheme)
    driver.get((SITE / page).as_uri())


def dress(driver: Any, width: int, scheme: str) -> None:
    """A window so wide, on a machine set to light or dark."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == NARROW}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})


def move(driver: Any, control: str, value: object) -> None:
    """What a reader's hand does to a slider, a list or a box."""
    driver.execute_script(
        "const [id, value] = arguments; const one = document.getElementById(id);"
        "if (one.type === 'checkbox') one.checked = value; else one.value = value;"
        "one.dispatchEvent(new Event('input', {bubbles: true}));"
        "one.dispatchEvent(new Event('change', {bubbles: true}));",
        control, value,
    )  # fmt: skip


def titles(driver: Any, picture: str) -> list[str]:
    """What the cells or bars of a picture say."""
    script = "return [...document.querySelectorAll(`#${arguments[0]} title`)].map((one) => one.textContent)"
    return driver.execute_script(script, picture)
