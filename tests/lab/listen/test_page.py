"""Pages of tunes: one file without any reference to the outside, whatever the titles; and the bundle's sources."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from relattn_lab.listen import Tune, page
from tests import seeds
from tests.lab.voices.synthetic import random_steps

ROOT = Path(__file__).parents[3]
HERE = ROOT / "lab/src/relattn_lab/listen"
TITLES = ("a </script><b>", "5$ and \\frac$", "[b] :smile:", "bach\udcff")


def held(text: str) -> list[dict]:
    """The tunes in a page."""
    found = re.search(r'<script type="application/json" class="relattn-tunes">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_notes_are_those_that_sound():
    steps = np.array([[72, 67, 64, 48], [72, 67, 62, -1], [71, 67, 62, 48]])
    told = Tune("a", steps, given=1, upbeat=4, bar_steps=12).as_json()
    assert told["notes"] == [
        [0, 1, 48, 3], [0, 1, 64, 2], [0, 2, 72, 0], [0, 3, 67, 1], [1, 3, 62, 2], [2, 3, 48, 3], [2, 3, 71, 0]
    ]  # fmt: skip
    assert (told["steps"], told["given"], told["upbeat"], told["barSteps"], told["attended"]) == (3, 1, 4, 12, None)
    assert told["stepSeconds"] == pytest.approx(60 / 72 / 4)


@pytest.mark.parametrize("title", TITLES)
def test_any_title_comes_back_and_ends_nothing(title: str):
    text = page(title, "lead & more", [Tune(title, random_steps(seeds.generator(0), 8), words=title)])
    (tune,) = held(text)
    assert (tune["title"], tune["words"]) == (title, title)
    assert text.count("</script>") == 2
    assert "lead &amp; more" in text


def test_a_page_is_one_file():
    text = page("a", "b", [Tune("a", random_steps(seeds.generator(0), 8))])
    assert len(text.encode()) < 3 * 2**20
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"(src|href|data|srcset)=", markup)
    assert "@import" not in text and "url(" not in (HERE / "player.css").read_text()


def test_more_given_than_there_is():
    with pytest.raises(ValueError, match=r"given: got 9; expected 0\.\.8, the steps of the tune"):
        Tune("a", random_steps(seeds.generator(0), 8), given=9)


def test_the_bundle_is_that_of_its_sources():
    """`make player` makes it, with npm, which no one needs who installs the lab."""
    player = ROOT / "lab" / "player"
    digest = hashlib.sha256()
    for name in ("package-lock.json", *sorted(f"src/{path.name}" for path in (player / "src").iterdir())):
        digest.update(name.encode() + (player / name).read_bytes())
    first, second = (HERE / "player.js").read_text().splitlines()[:2]
    assert f"sources {digest.hexdigest()} " in first
    assert second == "globalThis.TONE_SILENCE_LOGGING = true;"
    assert (HERE / "player.css").read_bytes() == (player / "src/player.css").read_bytes()


def test_no_address_of_a_registry_and_every_licence():
    lock = json.loads((ROOT / "lab/player/package-lock.json").read_text())
    assert not any("resolved" in entry for entry in lock["packages"].values())
    licences = (HERE / "player.LICENSES.txt").read_text()
    for path in lock["packages"]:
        if path and "esbuild" not in path:
            assert f"{path.removeprefix('node_modules/')} " in licences
