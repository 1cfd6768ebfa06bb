"""Options as a TOML file: written beside results, read back to the same settings, refused with their line."""

from dataclasses import fields
from pathlib import Path

import pytest

from relattn_lab.config_file import OPTIONS, read_config, write_config
from relattn_lab.settings import Settings


def test_every_option_can_stand_in_a_file():
    assert set(OPTIONS) == {field.name for field in fields(Settings)}


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(
            data='a "b" \\ c.txt', encodings=("relative", "t5"), seeds=(0, 7), minutes=None, steps=30, dropout=0.1
        ),
        Settings(minutes=1, length=64, width=32, depth=2, heads=2, batch=8, learning_rate=1e-3, context_parallel=2),
    ],
)
def test_what_is_written_is_read_back(tmp_path: Path, settings: Settings):
    write_config(tmp_path, settings)
    assert Settings.from_dict(read_config(tmp_path / "config.toml")) == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "steps = 30\n\nwidht = 64\n",
            "line 3: got the option 'widht'; expected some of data, encodings,",
        ),
        ("steps = 30\n[model]\nwidth = 64\n", "line 2: got the option 'model'; expected some of data"),
        ("# steps of every run\nsteps = '30'\n", "line 2: got steps = '30'; expected a whole number"),
        ("steps = 30.0\n", "line 1: got steps = 30.0; expected a whole number"),
        ("depth = true\n", "line 1: got depth = True; expected a whole number"),
        ("minutes = 'five'", "line 1: got minutes = 'five'; expected a number"),
        ("data = 3", "line 1: got data = 3; expected a text"),
        ('encodings = "relative"', "line 1: got encodings = 'relative'; expected a list of texts"),
        ("seeds = [0, 1.5]", "line 1: got seeds = [0, 1.5]; expected a list of whole numbers"),
        (
            "steps = 30\nsteps = 40",
            "which is no TOML (Cannot overwrite a value (at end of document)); exp",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"config: got {path}" if "TOML" in message else f"config: {path}, ")
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"a\.toml, which is not there; expected a \.toml file of options"):
        read_config(tmp_path / "a.toml")
