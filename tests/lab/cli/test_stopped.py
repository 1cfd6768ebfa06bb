"""Ctrl-C and SIGTERM at any command: one sentence, what is kept, and the exit code of the signal."""

import os
import signal
from pathlib import Path

import pytest

from relattn_lab import compose as lab_compose
from relattn_lab.cli import reproduce as reproduce_command
from relattn_lab.stopping import ECHO, StopRequest, first_signal_waits
from tests.lab.cli.test_commands import call, refused
from tests.lab.small import write_data

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def sends(signum: int):
    """In place of long work: the signal comes."""

    def send(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), signum)

    return send


@pytest.mark.parametrize(("signum", "exits"), SIGNALS)
def test_reproduce(signum: int, exits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_command, "start", sends(signum))
    asked = ["reproduce", "jsb", "--data", write_data(tmp_path / "small.json"), "--out", tmp_path / "jsb"]
    assert call(*asked)[::2] == (exits, "stopped before the first step; nothing was kept")
    monkeypatch.setattr(reproduce_command.lengths, "Lengths", sends(signum))
    assert call("reproduce", "lengths", *asked[2:])[::2] == (exits, "stopped")


@pytest.mark.parametrize(("after", "signum", "exits"), [(0, signal.SIGINT, 130), (11, signal.SIGTERM, 143)])
def test_compose_keeps_what_was_composed(
    after: int, signum: int, exits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token after the signal ends: twelve tokens of four voices are three whole steps; one is nothing to keep."""
    take_away = lab_compose._Allowed.__call__

    def interrupted(self, input_ids, scores):
        if input_ids.shape[1] == 1 + 4 * 8 + after:
            os.kill(os.getpid(), signum)
        return take_away(self, input_ids, scores)

    monkeypatch.setattr(lab_compose._Allowed, "__call__", interrupted)
    code, printed, said = call("compose", "--prompt-steps", 8, "--steps", 99, "--out", tmp_path / "out")
    assert code == exits
    if after:
        assert "11 steps, 8 of them given" in printed
        assert said.endswith("stopped; what was composed until then is kept")
        assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".html", ".mid", ".png"}
    else:
        assert said.endswith("stopped; nothing was kept")
        assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_composing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_compose, "load_checkpoint", None)  # what comes after is not reached
    (tmp_path / "file").write_text("")
    for out, why in (
        (Path("/proc/relattn/x"), "No such file or directory"),
        (tmp_path / "file" / "x", "Not a directory"),
    ):
        assert refused("compose", "--out", out) == (
            f"{out} cannot be written: got {why!r}; expected free space and write permission; free some space, or "
            "choose another folder"
        )


def test_a_signal_that_comes_twice_at_once_is_one() -> None:
    """`timeout` sends it to the process and to its group. One that comes later is meant."""
    asked = StopRequest()
    with first_signal_waits(asked):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert asked.signum == signal.SIGINT
        asked.when -= 2 * ECHO
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
