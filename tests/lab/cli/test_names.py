"""Names of files and data with characters special to rich or matplotlib: they go through as they are."""

import os
import re
import shutil
from pathlib import Path

import pytest
from matplotlib.text import Text

from tests.lab.cli.test_commands import SMALL, call, refused
from tests.lab.played.synthetic import write_folder
from tests.lab.small import write_data

pytest_plugins = ["tests.lab.played.apart"]

MARKUP = ("p[/b]", "[red]x", ":smile:[bold]", "[link=a]b", "back\\[/slash]")


def compare(data: Path, out: Path) -> tuple[int, str, str]:
    return call("compare", "--data", data, "--encodings", "none", "--steps", 1, "--out", out, *SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", MARKUP)
def test_a_folder_named_like_markup(name: str, tmp_path: Path) -> None:
    data, out = write_data(tmp_path / f"{name.replace('/', '')}.json"), tmp_path / name
    code, printed, said = compare(data, out)
    assert code == 0, said
    assert f"report {out / 'report.html'} " in printed
    assert f"({data.stem})" in printed
    checkpoint = re.search(r"compose --checkpoint (.*)$", printed).group(1)
    assert checkpoint.strip("'") == str(out / "runs" / "none-seed0" / "model")
    music = tmp_path / f"{name} music"
    code, printed, said = call("compose", "--checkpoint", checkpoint.strip("'"), "--steps", 1, "--out", music)
    assert code == 0, said
    (midi,) = music.glob("*.mid")
    assert str(midi) in printed
    assert refused("compare", "--data", data, "--out", out, *SMALL) == (
        f"--out: got {out}, which holds another comparison; expected a new folder; pass --resume to go on with it, or "
        "choose another --out"
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that matplotlib draws as mathematics."""
    found: list[str] = []
    preprocess = Text._preprocess_math

    def remembering(self, text):
        shown, mathematics = preprocess(self, text)
        if mathematics:
            found.append(text)
        return shown, mathematics

    monkeypatch.setattr(Text, "_preprocess_math", remembering)
    return found


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [r"a$\frac$b", "5$ and 7$"])
@pytest.mark.parametrize("kind", ["json", "midi"])
def test_dollars_are_no_mathematics(name: str, kind: str, tmp_path: Path, drawn: list[str]) -> None:
    if kind == "json":
        data = write_data(tmp_path / f"{name}.json")
    else:
        data = write_folder(tmp_path / name)
        for path in sorted(data.rglob("*.MID")):  # any of them may be the one that is held out
            path.rename(path.with_name(f"{name} {path.name}"))
    code, _, said = compare(data, tmp_path / "out")
    assert code == 0, said
    checkpoint = tmp_path / "out" / "runs" / "none-seed0" / "model"
    length = ["--prompt-steps", 8, "--steps", 1]
    code, printed, said = call("compose", "--checkpoint", checkpoint, *length, "--out", tmp_path / "music")
    assert code == 0, said
    assert name in printed
    assert len(list((tmp_path / "music").glob("*.png"))) == 1
    assert drawn == []


NO_UTF8 = os.fsdecode(b"b\xff")


def test_a_data_name_that_is_no_utf8(tmp_path: Path) -> None:
    data, out = write_data(tmp_path / f"{NO_UTF8}.json"), tmp_path / "out"
    assert refused("compare", "--data", data, "--out", out, *SMALL) == (
        f"--data: got {os.fsencode(data)!r}, which is not UTF-8; expected a name in UTF-8; rename it"
    )
    assert not out.exists()


def test_a_midi_file_whose_name_is_no_utf8(tmp_path: Path) -> None:
    songs = write_folder(tmp_path / "songs")
    bad = songs / f"{NO_UTF8}.mid"
    shutil.copy(next(songs.iterdir()), bad)
    assert refused("compare", "--data", songs, "--out", tmp_path / "out", *SMALL) == (
        f"--data: got {os.fsencode(bad)!r}, which is not UTF-8; expected a name in UTF-8; rename it"
    )


@pytest.mark.parametrize("command", ["compare", "compose", "resume"])
def test_a_folder_whose_name_is_no_utf8(command: str, tmp_path: Path) -> None:
    out = tmp_path / NO_UTF8
    asked = {
        "compare": ["compare", "--data", write_data(tmp_path / "small.json"), *SMALL],
        "compose": ["compose", "--checkpoint", tmp_path],
        "resume": ["compare", "--resume"],
    }[command]
    assert refused(*asked, "--out", out) == (
        f"--out: got {os.fsencode(out)!r}, which is not UTF-8; expected a name in UTF-8; rename it"
    )
    assert not out.exists()


def test_a_checkpoint_that_is_not_there_and_no_utf8(tmp_path: Path) -> None:
    """A sentence shows what cannot be shown by its bytes."""
    said = refused("compose", "--checkpoint", tmp_path / NO_UTF8, "--out", tmp_path / "out")
    assert said.startswith(
        rf"--checkpoint: got {tmp_path}/b\udcff, which is no folder; expected a folder `model` that "
    )
