"""atomic_path: whole or absent."""

import os
import stat

import pytest

from relattn.lab.music.files import atomic_path


def test_a_finished_file_replaces_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_path(path) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".txt")
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failure_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_file_is_as_readable_as_any_new_file(tmp_path):
    with atomic_path(tmp_path / "ours.txt") as temporary:
        temporary.write_text("x")
    (tmp_path / "any.txt").write_text("x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours.txt", "any.txt")]
    assert modes[0] == modes[1]


def test_no_folder(tmp_path):
    expected = pytest.raises(FileNotFoundError, match=r"the folder .*nowhere' for 'a.txt' does not exist")
    with expected, atomic_path(tmp_path / "nowhere" / "a.txt"):
        pass
