"""Two processes with one --out: the second is refused, and the lock dies with its process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relattn_lab.lock import LOCK, exclusive_folder
from tests.lab.cli.test_commands import SMALL, call, refused
from tests.lab.small import write_data

HOLDER = """
import sys
from pathlib import Path
from relattn_lab.lock import exclusive_folder
with exclusive_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(out: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def busy(out: Path) -> str:
    return (
        f"--out: got {out}, where another process is at work; expected a folder for this one alone; wait for the other "
        "to end, or choose another --out"
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stop", [signal.SIGKILL, None])
def test_the_second_process_is_refused_until_the_first_is_gone(stop: signal.Signals | None, tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "small.json"), tmp_path / "runs" / "out"
    first = holder(out)
    asked = ["compare", "--data", data, "--encodings", "none", "--steps", 1, "--out", out, *SMALL]
    assert refused(*asked) == refused(*asked, "--resume") == busy(out)
    assert [path.name for path in out.iterdir()] == [LOCK]
    if stop is None:
        first.communicate("")
        assert not out.parent.exists()
    else:
        first.send_signal(stop)
        first.communicate()
        assert [path.name for path in out.iterdir()] == [LOCK]
    assert call(*asked)[0] == 0
    assert LOCK not in {path.name for path in out.iterdir()}


def test_folders_that_were_made_for_nothing_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    with pytest.raises(RuntimeError), exclusive_folder(out):
        assert out.is_dir()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with exclusive_folder(out):
        (out / "file").touch()
    assert [path.name for path in out.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuses)
    with pytest.raises(OSError) as caught, exclusive_folder(tmp_path / "out"):
        pass
    assert str(caught.value) == (
        f"{tmp_path / 'out'} cannot be written: got 'Permission denied'; expected free space and write permission; "
        "free some space, or choose another folder"
    )
