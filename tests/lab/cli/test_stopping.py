"""Ctrl-C and SIGTERM at random moments, then --resume: the same final numbers.

python -m tests.lab.cli.test_stopping 20      # that many moments, with the seeds 0, 1, ...
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from relattn_lab.cli import main
from tests.lab.small import write_data

ASKED = [
    *("--encodings", "relative-heads,none", "--seeds", "0,1", "--steps", "70"),
    *("--length", "16", "--width", "16", "--depth", "1", "--heads", "2"),
]
STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Told by the command; or, before it has begun to answer signals, by the system."""


FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["relattn_lab.cli.compare", "tests.lab.small"])
"""Each command in a process of its own, in which the libraries are loaded already: what is stopped is the work."""


def _command(arguments: list[str], errors: Path, began: Connection) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in (1, 2):
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.argv = ["relattn-lab", *arguments]
    began.send(None)
    main()


class Command:
    """`relattn-lab` at work; made when it begins."""

    def __init__(self, *arguments: object) -> None:
        handle, name = tempfile.mkstemp()
        os.close(handle)
        self.errors = Path(name)
        receiver, sender = FRESH.Pipe(duplex=False)
        self.process = FRESH.Process(target=_command, args=([*map(str, arguments)], self.errors, sender))
        self.process.start()
        receiver.recv()

    def end(self) -> tuple[int, str]:
        """The exit code, and all that was printed."""
        self.process.join()
        said = self.errors.read_text()
        self.errors.unlink()
        assert self.process.exitcode is not None
        return self.process.exitcode, said


def begin(data: Path, out: Path) -> Command:
    return Command("compare", "--data", data, "--out", out, *ASKED)


def finish(command: Command) -> None:
    code, said = command.end()
    assert code == 0, said


def figures(out: Path) -> dict:
    """All that a comparison found, less what time and place decide."""
    results = json.loads((out / "results.json").read_text())
    for run in results["runs"]:
        del run["seconds_per_step"]
    return {name: results[name] for name in ("summary", "runs", "ngram", "lengths", "settings")}


def stop_and_resume(data: Path, out: Path, whole: float, seed: int) -> str:
    """One comparison, stopped at a moment that the seed draws within the `whole` seconds, gone on with to its end."""
    drawn = random.Random(seed)
    moment, sent = drawn.uniform(0.0, whole), drawn.choice((signal.SIGINT, signal.SIGTERM))
    command = begin(data, out)
    time.sleep(moment)
    assert command.process.pid is not None
    with suppress(ProcessLookupError):  # it was quicker than the whole one
        os.kill(command.process.pid, sent)
    code, said = command.end()
    told = f"{sent.name} after {moment:.1f} of {whole:.1f} s: exit code {code}"
    assert code in (0, *STOPPED), f"{told}\n{said}"
    assert "Traceback" not in said, f"{told}\n{said}"
    if (out / "settings.json").exists():
        done = len(list(out.glob("runs/*/result.json")))
        finish(Command("compare", "--resume", "--out", out))
        return f"{told}, {done} of 4 runs done"
    finish(begin(data, out))
    return f"{told}, nothing kept"


def check(folder: Path, seeds: range) -> None:
    data = write_data(folder / "small.json")
    finish(begin(data, folder / "first"))  # brings everything into the system's cache
    started = time.monotonic()
    finish(begin(data, folder / "whole"))
    whole, expected = time.monotonic() - started, figures(folder / "whole")
    assert figures(folder / "first") == expected
    for seed in seeds:
        told = stop_and_resume(data, folder / str(seed), whole, seed)
        equal = figures(folder / str(seed)) == expected
        print(f"seed {seed}: {told}; {'the same numbers' if equal else 'OTHER NUMBERS'}", flush=True)
        assert equal


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_comparison_stopped_at_any_moment_ends_with_the_same_numbers(tmp_path: Path) -> None:
    check(tmp_path, range(100, 104))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        check(Path(made), range(int(sys.argv[1])))
