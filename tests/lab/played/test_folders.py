"""Folders of MIDI files: the split, what is left out, what cannot be used and why, and what is kept of reading."""

import os
from collections.abc import Iterator
from pathlib import Path

import mido
import numpy as np
import pytest

from relattn_lab.dataset import Dataset
from relattn_lab.played import corpus, kept
from relattn_lab.played.corpus import load_midi_folder, read_folder
from relattn_lab.played.notes import UnusableError, read_notes
from tests.lab.played.synthetic import off, on, write_folder, write_midi
from tests.lab.small import Recorder

pytest_plugins = ["tests.lab.played.apart"]

WAY_OUT = "expected MIDI files with notes; take them out of the folder, or pass --skip-bad to go on without"


def contents(folder: Path) -> dict[str, list[bytes]]:
    splits, _ = read_folder(folder)
    return {name: [played.path.read_bytes() for played in files] for name, files in splits.items()}


def whole(tmp_path: Path) -> bytes:
    return write_midi(tmp_path / "whole.mid", on(60), off(60, 100), on(62), off(62, 100)).read_bytes()


def test_a_split_by_file_that_no_name_changes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", 30)
    split = contents(folder)
    assert {name: len(files) for name, files in split.items()} == {"train": 24, "valid": 3, "test": 3}
    assert len({content for part in split.values() for content in part}) == 30
    for number, path in enumerate(sorted(folder.rglob("*.MID"))):
        path.rename(folder / f"{97 * number % 31}.mid")
    assert contents(folder) == split


def test_equal_files_count_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", 3)
    for number, path in enumerate(sorted(folder.rglob("*.MID"))):
        (folder / f"copy {number}.mid").write_bytes(path.read_bytes())
    assert [len(files) for files in contents(folder).values()] == [1, 1, 1]


def test_all_files_are_read_at_first(tmp_path: Path) -> None:
    calls = []
    songs = load_midi_folder(write_folder(tmp_path / "songs", 5), lambda done, total: calls.append((done, total)))
    assert calls == [(done, 5) for done in range(1, 6)]
    assert len(songs.pieces("train")) == 3
    assert songs.name == "songs"


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, str]]:
    """A folder of 10 good files and one of each kind that cannot be used; and why each cannot."""
    folder, content = write_folder(tmp_path / "songs", 10), whole(tmp_path)
    end = content.index(b"MTrk")
    for name, broken in {
        "cut.mid": content[: len(content) // 2],
        "division.mid": content[:12] + b"\0\0" + content[14:],
        "empty.mid": b"",
        "film.mid": content[:12] + b"\xe7\x28" + content[14:],
        "fifth.mid": content[:8] + b"\0\5" + content[10:],
        "other.mid": b"M" + content,
        "riff.mid": b"RIFF" + content,
        "status.mid": content[: end + 8] + b"\0\x45" + content[end + 10 :],
    }.items():
        (folder / name).write_bytes(broken)
    write_midi(folder / "drums.mid", on(40, channel=9), off(40, 9, channel=9))
    write_midi(folder / "endless.mid", on(60), off(60, 2**28 - 1), ticks_per_beat=1)
    write_midi(folder / "silent.mid")
    write_midi(folder / "two songs.mid", on(60), off(60, 10), type=2)
    (folder / "nowhere.mid").symlink_to(folder / "no such file")
    return folder, {
        "cut.mid": "is cut off",
        "division.mid": "has a division of 0, so that its ticks have no length",
        "drums.mid": "holds no notes (drums do not count)",
        "empty.mid": "is empty",
        "endless.mid": "lasts for 134217728 seconds, more than a day",
        "fifth.mid": "is of type 5, which the standard does not have",
        "film.mid": "has a division in frames of film (SMPTE), which mido does not read",
        "nowhere.mid": "cannot be read (No such file or directory)",
        "other.mid": "is no MIDI file, for it does not begin with MThd",
        "riff.mid": "is a RIFF file, which may hold a MIDI file (RMID): save that one by itself",
        "silent.mid": "holds no notes (drums do not count)",
        "status.mid": "mido cannot read (running status without last_status)",
        "two songs.mid": "is of type 2, whose tracks are pieces of their own",
    }


def test_all_bad_files_are_named_at_once_with_their_reasons(bad: tuple[Path, dict[str, str]]) -> None:
    folder, reasons = bad
    with pytest.raises(ValueError) as caught:
        load_midi_folder(folder)
    listed = "; ".join(f"{folder / name}, which {why}" for name, why in reasons.items())
    assert str(caught.value) == f"data: got {listed}; {WAY_OUT}"


def test_skip_bad_goes_on_without_them_and_names_them(bad: tuple[Path, dict[str, str]]) -> None:
    folder, reasons = bad
    said = Recorder()
    dataset = Dataset.load(str(folder), 16, said, skip_bad=True)
    assert said.said == [f"left out: {folder / name}, which {why}" for name, why in reasons.items()]
    assert sum(len(dataset.corpus.pieces(split)) for split in ("train", "valid", "test")) == 10


def test_a_file_that_may_not_be_read_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(UnusableError, match=r"^cannot be read \(Permission denied\)$"):
        corpus._read(tmp_path / "a.mid")


def test_a_key_signature_that_does_not_exist_is_bad(tmp_path: Path) -> None:
    path = write_midi(tmp_path / "sharp.mid", mido.MetaMessage("key_signature", key="C"), on(60), off(60, 10))
    content = path.read_bytes().replace(b"\xff\x59\x02\x00", b"\xff\x59\x02\x14")
    with pytest.raises(UnusableError, match=r"^mido cannot read \(.*key"):
        read_notes(content)


def test_hidden_files_are_left_out_and_others_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", 3)
    (folder / "._song 0.MID").write_bytes(b"\0\5\x16\7")
    (folder / ".trash").mkdir()
    (folder / ".trash" / "old.mid").write_bytes(b"")
    (folder / ".DS_Store").write_bytes(b"")
    assert load_midi_folder(folder).remarks == []
    for name in ("a.txt", "more/b.jpg"):
        (folder / name).write_bytes(b"")
    assert load_midi_folder(folder).remarks == ["2 files of other kinds left out: a.txt, more/b.jpg"]
    for number in range(5):
        (folder / f"z{number}.kar").write_bytes(b"")
    assert load_midi_folder(folder).remarks == [
        "7 files of other kinds left out: a.txt, more/b.jpg, z0.kar, z1.kar, z2.kar and 2 more"
    ]


def test_too_few_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", 3)
    expected = "expected at least 3, named .mid or .midi, to train on, to choose by and to hold out"
    with pytest.raises(ValueError) as caught:
        read_folder(folder / "more")
    assert str(caught.value) == f"data: got the folder {folder / 'more'} with 1 different MIDI files; {expected}"
    (folder / "more" / "a.kar").write_bytes(b"")
    (folder / "more" / "b.mid").write_bytes(b"")
    with pytest.raises(ValueError) as caught:
        read_folder(folder / "more", skip_bad=True)
    assert str(caught.value) == (
        f"data: got the folder {folder / 'more'} with 1 different MIDI files that can be used (1 file of other kinds "
        f"left out: a.kar); {expected}"
    )


def test_a_folder_that_may_not_be_read_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, scan = write_folder(tmp_path / "songs", 3), os.scandir
    for name in ("closed", ".closed"):
        (folder / name).mkdir()

    def refusing(place: Path) -> Iterator[os.DirEntry[str]]:
        if str(place).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refusing)
    _, remarks = read_folder(folder, skip_bad=True)
    assert remarks == [f"left out: {folder / 'closed'}, which cannot be read (Permission denied)"]


def test_without_a_home_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", Path("~nobody at all/events"))
    with pytest.warns(UserWarning, match="cannot be kept in .*, and will be read again"):
        assert len(read_folder(write_folder(tmp_path / "songs", 3))[0]["train"]) == 1


def test_what_was_read_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "events")
    folder = write_folder(tmp_path / "songs", 4)
    before = [played.events for files in read_folder(folder)[0].values() for played in files]
    one, *rest = sorted((tmp_path / "events").iterdir())
    assert len(rest) == 3
    read = []
    monkeypatch.setattr(corpus, "read_notes", lambda content: read.append(1) or read_notes(content))
    for damaged in (b"", one.read_bytes()[:-1], one.read_bytes()[:-2] + b"\xff\x7f"):
        one.write_bytes(damaged)
        after = [played.events for files in read_folder(folder)[0].values() for played in files]
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert len(read) == 3  # the damaged one, each time


def test_where_nothing_can_be_kept_it_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "file" / "events")
    with pytest.warns(UserWarning, match="cannot be kept in .*, and will be read again"):
        assert len(read_folder(write_folder(tmp_path / "songs", 3))[0]["train"]) == 1
