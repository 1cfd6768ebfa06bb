"""The music pages in Chromium: they play, seek, mute and show what notes look at; the sound is that of the notes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relattn_lab.listen import Tune, attended_by, page
from tests.lab import small
from tests.site.browser import NARROW, WIDE, chromium, dress

pytestmark = pytest.mark.site

STEPS = np.repeat(np.array([[72, 67, 64, 48], [74, 67, -1, 50], [76, 65, 60, 52], [72, 64, 60, 48]]), 4, axis=0)
STEP_SECONDS = 60 / 72 / 4
BADLY = "a <b>title</b> $x$ [b] </script>"


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium("--autoplay-policy=no-user-gesture-required") as started:
        started.set_script_timeout(60)
        yield started


@pytest.fixture
def shown(driver: Any, tmp_path: Path) -> Any:
    """A page of two tunes, of which a model has written the first."""
    model = small.model("relative", depth=2, vocab_size=60)
    tokens = (STEPS.ravel() - 40).clip(1)
    tunes = [
        Tune(BADLY, STEPS, given=4, words="by a model", attended=attended_by(model, tokens)),
        Tune("Bach", STEPS, given=4),
    ]
    path = tmp_path / "bach\udcff$.html"  # a name that is no UTF-8
    path.write_text(page(BADLY, "Press play.", tunes))
    dress(driver, WIDE, "light")
    driver.get(path.as_uri())
    yield driver
    assert driver.get_log("browser") == []


def ask(driver: Any, script: str) -> Any:
    return driver.execute_script(f"const [first, second] = document.querySelectorAll('.tune'); return {script}")


def wait(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the page does not get there"
        time.sleep(0.05)


def at(driver: Any, card: str = "first") -> float:
    return float(ask(driver, f"{card}.querySelector('input').value"))


def test_it_plays_pauses_and_only_one_at_a_time(shown):
    assert ask(shown, "first.querySelector('h3').textContent") == BADLY
    first, second = shown.find_elements("css selector", "button.play")
    first.click()
    wait(lambda: at(shown) > 0.3)
    assert ask(shown, "[first.dataset.state, first.querySelector('.play').ariaLabel]") == ["playing", "pause"]
    assert ask(shown, "first.querySelectorAll('.sounds').length") > 0
    second.click()
    wait(lambda: at(shown, "second") > 0.2)
    assert ask(shown, "[first.dataset.state, second.dataset.state]") == ["paused", "playing"]
    stopped = at(shown)
    second.click()
    time.sleep(0.3)
    assert ask(shown, "second.dataset.state") == "paused"
    assert at(shown) == stopped


def test_it_seeks_and_ends(shown):
    end = len(STEPS) * STEP_SECONDS
    shown.find_element("css selector", "button.play").click()
    wait(lambda: at(shown) > 0.1)
    slider = "first.querySelector('input')"
    ask(shown, f"({slider}.value = {end - 0.6}, {slider}.dispatchEvent(new Event('input')))")
    assert at(shown) > end - 1
    wait(lambda: ask(shown, "first.dataset.state") == "paused")
    assert at(shown) == pytest.approx(end, abs=0.02)


def test_the_space_bar_plays(shown):
    from selenium.webdriver.common.keys import Keys

    card = shown.find_element("css selector", ".tune")
    card.send_keys(Keys.SPACE)
    wait(lambda: at(shown) > 0.1)
    card.send_keys(Keys.SPACE)
    assert ask(shown, "first.dataset.state") == "paused"


def rendered(driver: Any) -> tuple[np.ndarray, int]:
    rate, samples = driver.execute_async_script(
        "const done = arguments[0];window.relattnPlayer.render(0).then(({rate, samples}) => done([rate, [...samples]]))"
    )
    return np.array(samples), rate


def heard(samples: np.ndarray, rate: int, step: int) -> dict[int, float]:
    """How strong the fundamental of every pitch from 40 to 80 is in the middle of the four steps from `step` on."""
    middle = samples[int((step + 1) * STEP_SECONDS * rate) : int((step + 3) * STEP_SECONDS * rate)]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle)), 2**17))
    frequencies = {pitch: 440 * 2 ** ((pitch - 69) / 12) for pitch in range(40, 81)}
    return {pitch: float(spectrum[round(hertz * 2**17 / rate)]) for pitch, hertz in frequencies.items()}


def test_the_sound_has_the_pitches_and_the_onsets_of_the_notes(shown):
    samples, rate = rendered(shown)
    assert len(samples) / rate == pytest.approx(len(STEPS) * STEP_SECONDS + 0.35, abs=0.01)
    assert 0.02 < np.abs(samples).max() <= 1.0
    for step in range(0, len(STEPS), 4):
        strength = heard(samples, rate, step)
        sounding = {int(pitch) for pitch in STEPS[step] if pitch >= 0}
        overtones = {pitch + interval for pitch in sounding for interval in (12, 19, 24, 28)}
        silent = set(strength) - sounding - overtones - {pitch + near for pitch in sounding for near in (-1, 1)}
        assert min(strength[pitch] for pitch in sounding) > 4 * max(strength[pitch] for pitch in silent)
    # a new chord every four steps: just before it the notes have been let go, just after it they grow
    for step in range(4, len(STEPS), 4):
        onset = int(step * STEP_SECONDS * rate)
        before, after = (
            np.abs(samples[onset + shift : onset + shift + rate // 50]).mean() for shift in (-rate // 50, rate // 20)
        )
        assert after > before


def test_a_voice_is_muted(shown):
    everything, rate = rendered(shown)
    shown.find_element("css selector", "button.voice3").click()
    assert ask(shown, "first.querySelector('button.voice3').getAttribute('aria-pressed')") == "false"
    without, _ = rendered(shown)
    assert heard(without, rate, 0)[48] < 0.05 * heard(everything, rate, 0)[48]
    assert heard(without, rate, 0)[72] > 0.5 * heard(everything, rate, 0)[72]
    shown.find_element("css selector", "button.voice3").click()


def test_a_note_shows_what_it_looks_at(shown):
    alto = "(note) => note.classList.contains('voice1')"
    number = ask(shown, f"[...first.querySelectorAll('.note')].findLastIndex({alto})")
    note = f"first.querySelector('.note[data-note=\"{number}\"]')"
    ask(shown, f"{note}.dispatchEvent(new PointerEvent('pointerenter'))")
    lines = ask(shown, "[...first.querySelectorAll('.looks li')].map((line) => line.textContent)")
    assert len(lines) == 2 and lines[0].startswith("head 1: ")
    assert " %)" in lines[0] and ("back" in lines[0] or "at the same time" in lines[0])
    assert ask(shown, "first.querySelectorAll('.looked rect').length") > 0
    ask(shown, "first.querySelectorAll('.layers button')[0].click()")
    ask(shown, f"{note}.dispatchEvent(new PointerEvent('pointerenter'))")
    assert ask(shown, "[...first.querySelectorAll('.looks li')].map((line) => line.textContent)") != lines
    ask(shown, f"{note}.dispatchEvent(new PointerEvent('pointerleave'))")
    assert ask(shown, "first.querySelectorAll('.looks li').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_on_a_small_screen(shown, scheme):
    dress(shown, NARROW, scheme)
    shown.refresh()
    assert shown.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    colours = shown.execute_script(
        "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
    )
    ink, paper = (sum(int(part) for part in colour.strip("rgb()").split(",")) for colour in colours)
    assert (ink < paper) is (scheme == "light") and abs(ink - paper) > 400
    assert shown.execute_script(
        "return [...document.querySelectorAll('.tune *')].every((one) => one.closest('.roll')"
        " || one.getBoundingClientRect().right <= innerWidth)"
    )
