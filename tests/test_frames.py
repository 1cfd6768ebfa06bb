"""Frames of relattn's Python in one call: no more than today, in no more files, with no more changes of file.

The aim is 0.6 of BEFORE's frames and half of its changes of file. After a change that saves some, write the new counts
of `python -m measure.frames` into MOST.
"""

import sys

import pytest

from measure.frames import CALLS, FOLDER, Count, Entered, frames_of, frames_of_a_later_call
from relattn.checks.dtensors import DTENSORS, FSDP

BEFORE = {
    "native": Count(159, 25, 74),
    "auto": Count(180, 26, 85),
    "token": Count(346, 33, 162),
    "triton": Count(223, 32, 114),
    "triton step": Count(421, 39, 211),
}
"""As counted at commit 32d1a04, by Python 3.11; those of triton without the launches themselves."""
MOST = {
    "native": Count(25, 11, 14),
    "auto": Count(25, 11, 14),
    "token": Count(62, 18, 34),
    "triton": Count(31, 13, 15),
    "triton step": Count(47, 15, 24),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_call_enters_more_than_today(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program that has not imported FSDP and DTensors; another test may have."""
    for imported in (FSDP, DTENSORS):
        monkeypatch.delitem(sys.modules, imported, raising=False)
    if name.startswith("triton"):
        pytest.importorskip("triton", reason="Triton is a package for Linux")
    count = Count.of(frames_of_a_later_call(name))
    shares = ", ".join(f"{now / before:.2f} of {before}" for now, before in zip(count, BEFORE[name], strict=True))
    assert all(now <= most for now, most in zip(count, MOST[name], strict=True)), f"{count}: {shares}"


def test_a_generator_is_one_frame() -> None:
    """And what it calls each time it goes on is one each time; the caller, another library, is none."""
    made: dict[str, object] = {}
    texts = {"one": "def three():\n for n in range(3): yield two()", "another": "def two(): return 2"}
    for file, text in texts.items():
        exec(compile(text, str(FOLDER / f"{file}.py"), "exec"), made)
    before = sys.getprofile()
    found = frames_of(lambda: list(made["three"]()))  # pyright: ignore[reportCallIssue]
    two = Entered("another.py", "two")
    assert found == [Entered("one.py", "three"), two, two, two]
    assert Count.of(found) == (4, 2, 1)
    assert sys.getprofile() is before
