"""Progress where there is no terminal: lines, few of them, with what is left; and the bar where there is one."""

import io

import pytest
from rich.console import Console

from relattn.cli import console
from relattn.cli.console import LINES, SECONDS, Bar, Lines


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(total: int, seconds: float, note: str = "") -> list[str]:
    """What is written for a task of so many units, each of which takes so long."""
    written, clock = [], Clock()
    lines = Lines(written.append, clock)
    lines.begin("training", total)
    for done in range(1, total + 1):
        clock.now += seconds
        lines.advance(done, note)
    return written


def test_a_line_every_few_per_cent_with_what_is_left():
    written = lines_of(1000, 1.0, "0.5 nats")
    assert written[0] == "training: 1000 to go"
    assert written[1] == "training: 40 of 1000 (4%), about 16 min 00 s left, 0.5 nats"
    assert written[-1] == "training: 1000 of 1000 (100%), about 0 s left, 0.5 nats"
    assert len(written) == LINES + 1


def test_long_work_is_counted_in_hours():
    assert lines_of(100, 360.0)[1] == "training: 4 of 100 (4%), about 9 h 36 min left"


def test_short_work_writes_little():
    written = lines_of(1000, SECONDS / 300)
    assert len(written) == 1 + 3
    assert len(lines_of(10, 0.01)) == 1


def test_a_task_that_goes_on_counts_what_this_run_did():
    """A run that goes on: it takes long to begin, and its first step is not step 1."""
    written, clock = [], Clock()
    lines = Lines(written.append, clock)
    lines.begin("training", 6000)
    clock.now += 30
    for done in range(1801, 2100):
        lines.advance(done, "")
        clock.now += 0.1
    assert len(written) == 2  # the first few steps may be slow: a line comes after four per cent
    assert written[1].endswith("of 6000 (34%), about 6 min 36 s left")


def test_the_bar_of_a_task_that_goes_on_counts_what_this_run_did():
    moving, clock = console._Moving(), Clock()
    moving._display.get_time = clock
    moving.begin("training", 6000)
    clock.now += 30
    for done in range(1801, 1821):
        moving.advance(done, "")
        clock.now += 0.1
    assert moving._display.tasks[0].time_remaining == pytest.approx(418, abs=1)


@pytest.mark.parametrize("terminal", [False, True])
def test_no_escape_codes_in_a_pipe(monkeypatch: pytest.MonkeyPatch, terminal: bool):
    stream = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=stream, force_terminal=terminal, highlight=False, markup=False))
    with Bar() as bar:
        bar.begin("training [b]", 2)
        bar.advance(1)
        bar.say("half of it")
    assert ("\x1b" in stream.getvalue()) is terminal
    assert "half of it" in stream.getvalue()
    if not terminal:
        assert stream.getvalue() == "training [b]: 2 to go\nhalf of it\n"
