"""draw_voices, judged by its pixels."""

import os
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from relattn.errors import ShapeError
from relattn_lab.pianoroll import GIVEN_COLOUR
from relattn_lab.voices.picture import COLOURS, draw_voices
from tests import seeds
from tests.lab.voices.synthetic import random_steps


def drawn(folder, steps, **options) -> np.ndarray:
    draw_voices(folder / "a.png", steps, **options)
    return imread(folder / "a.png")[..., :3]


def share(picture: np.ndarray, colour: str) -> float:
    """The part of the picture that has exactly this colour."""
    return float((np.abs(picture - to_rgb(colour)).max(axis=-1) < 1 / 255).mean())


def test_each_voice_has_its_colour(tmp_path):
    steps = random_steps(seeds.generator(0), 64, silence=0.0)
    whole = drawn(tmp_path, steps)
    for voice, colour in enumerate(COLOURS):
        silent = steps.copy()
        silent[:, voice] = -1
        # what is left is the legend's patch
        assert 0 < share(drawn(tmp_path, silent), colour) < 0.2 * share(whole, colour)


@pytest.mark.slow
def test_the_prompt_is_tinted(tmp_path):
    steps = np.full((64, 4), -1)
    shares = [share(drawn(tmp_path, steps, prompt_steps=n), GIVEN_COLOUR) for n in (0, 16, 32, 64)]
    assert shares[0] == 0
    assert shares[2] / shares[1] == pytest.approx(2, rel=0.1)
    assert shares[3] / shares[1] == pytest.approx(4, rel=0.1)


@pytest.mark.slow
def test_the_bars_are_marked(tmp_path):
    def dark_columns(**metre) -> int:
        picture = drawn(tmp_path, np.full((48, 4), -1), **metre)
        # a bar line is dark over most of the height; the lines of beats are not
        lines = (picture.max(axis=-1) < 0.8).mean(axis=0) > 0.6
        return int((np.diff(lines.astype(int)) == 1).sum())

    assert dark_columns(bar_steps=16) == 4
    assert dark_columns(bar_steps=12) == 5
    assert dark_columns(bar_steps=16, upbeat=4) == 3


@pytest.mark.slow
def test_a_long_piece_takes_more_rows(tmp_path):
    heights = [drawn(tmp_path, np.full((length, 4), 60), upbeat=4).shape[0] for length in (100, 132, 133, 400)]
    assert heights[0] == heights[1] < heights[2] < heights[3]


def test_a_note_goes_on_in_the_next_row(tmp_path):
    def soprano_pixels(length: int) -> float:
        steps = np.full((length, 4), -1)
        steps[:, 0] = 72
        picture = drawn(tmp_path, steps)
        return share(picture, COLOURS[0]) * picture.shape[0] * picture.shape[1]

    # one held note, of one and of two full rows; the legend's patch weighs little
    assert soprano_pixels(256) / soprano_pixels(128) == pytest.approx(2, rel=0.1)


def test_it_does_without_pyplot(tmp_path):
    sys.modules.pop("matplotlib.pyplot", None)
    drawn(tmp_path, np.full((1, 4), 60), title="one step")
    assert "matplotlib.pyplot" not in sys.modules


def test_bad_input_leaves_no_file(tmp_path):
    path, steps = tmp_path / "a.png", np.full((20, 4), 60)
    with pytest.raises(ShapeError, match=r"got shape \[20, 2\]"):
        draw_voices(path, steps[:, :2])
    for prompt in (-1, 21):
        with pytest.raises(ValueError, match=rf"prompt_steps: got {prompt}; expected 0\.\.20, .*"):
            draw_voices(path, steps, prompt_steps=prompt)
    for metre in ({"upbeat": 16}, {"upbeat": -1}, {"bar_steps": 0}):
        with pytest.raises(ValueError, match=r"upbeat, bar_steps: got .* and .*; expected 0 <= upbeat < bar_steps"):
            draw_voices(path, steps, **metre)
    with pytest.raises(FileNotFoundError, match=r"path: got .*, whose folder does not exist"):
        draw_voices(tmp_path / "nowhere" / "a.png", steps)
    assert os.listdir(tmp_path) == []
