"""Files and folders: whole or absent, and one sentence where they cannot be written."""

import errno
import os
import stat
import tempfile

import pytest

from relattn.cli.files import PARTIAL_PREFIX, atomic_path, check_name
from relattn_lab.support.files import check_folder, remove_drafts, whole_folder, write_json, write_text


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
    expected = pytest.raises(
        FileNotFoundError, match=r"path: got '.*nowhere/a.txt', whose folder does not exist; expected a name"
    )
    with expected, atomic_path(tmp_path / "nowhere" / "a.txt"):
        pass


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def said_of(path):
    return (
        f"{path} cannot be written: got 'No space left on device'; expected free space and write permission; "
        "free some space, "
        "or choose another folder"
    )


def test_a_full_disk_is_told_in_a_sentence_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises(OSError) as caught, atomic_path(path) as draft:
        draft.write_text("half")
        full()
    assert str(caught.value) == said_of(path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("1\n", ["a.json"])


def test_a_folder_on_a_full_disk(tmp_path):
    with pytest.raises(OSError) as caught, whole_folder(tmp_path / "a") as draft:
        (draft / "one").touch()
        full()
    assert str(caught.value) == said_of(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_not_even_a_draft_can_be_made(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "mkstemp", lambda **options: full())
    with pytest.raises(OSError) as caught:
        write_text(tmp_path / "a", "x")
    assert str(caught.value) == said_of(tmp_path / "a")


def test_a_sentence_is_not_told_twice(tmp_path):
    with pytest.raises(OSError) as caught, whole_folder(tmp_path / "a") as draft, atomic_path(draft / "b"):
        full()
    assert str(caught.value) == said_of(tmp_path / f"{PARTIAL_PREFIX}a" / "b")


def test_a_folder_is_whole_or_not_there(tmp_path):
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "a") as draft:
        (draft / "one").write_text("1")
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    for name in ("two", "three"):
        with whole_folder(tmp_path / "a") as draft:
            assert list(draft.iterdir()) == []
            (draft / name).write_text("2")
        assert [path.name for path in (tmp_path / "a").iterdir()] == [name]


def test_what_a_killed_process_left_is_removed(tmp_path):
    for name in ("a", "b/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"{PARTIAL_PREFIX}file.json").write_text("{")
        (tmp_path / name / f"{PARTIAL_PREFIX}folder").mkdir()
        (tmp_path / name / f"{PARTIAL_PREFIX}folder" / f"{PARTIAL_PREFIX}within").touch()
        (tmp_path / name / "kept").touch()
    remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c", "kept", "kept"]


def test_names_that_can_be_shown(tmp_path):
    check_name("out", "naïve 音楽")
    with pytest.raises(ValueError) as caught:
        check_name("out", os.fsdecode(b"a\xff"))
    assert str(caught.value) == "out: got b'a\\xff', which is not UTF-8; expected a name in UTF-8; rename it"
    (tmp_path / "file").touch()
    check_folder("out", tmp_path / "new")
    with pytest.raises(FileExistsError) as caught:
        check_folder("out", tmp_path / "file")
    assert str(caught.value) == (
        f"out: got {tmp_path / 'file'}, which is a file; expected a folder; choose another --out"
    )
