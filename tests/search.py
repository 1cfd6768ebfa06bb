"""Run tests with new random numbers again and again until time is up, and tell how to repeat what fails.

    python -m tests.search --minutes 30 [what pytest takes]

Ends with 1 where anything failed. In the runs that it starts, this module is the plugin that writes down what fails.
"""

import argparse
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

FAILURES = "RELATTN_FAILURES"
STOP_SECONDS = 10.0  # what pytest gets to end by itself once time is up


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    write_down(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    write_down(report)


def write_down(report: pytest.TestReport | pytest.CollectReport) -> None:
    """A line for what failed, at once, so that a run that is stopped loses nothing. xdist's workers leave it to it."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[FAILURES]).open("a") as file:
            file.write(report.nodeid + "\n")


def run(seed: int, seconds: float, arguments: list[str]) -> tuple[list[str], int | None]:
    """The names of what failed, and pytest's exit code, None where time was up before its end."""
    with tempfile.NamedTemporaryFile("r") as failures:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        environment |= {"RELATTN_SEED": str(seed), FAILURES: failures.name}
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "tests.search", *arguments]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            stop(process)
        return sorted(set(failures.read().splitlines())), code


def repeat(seed: int, name: str) -> str:
    """The command that repeats a failure."""
    return f"RELATTN_SEED={seed} {shlex.join([sys.executable, '-m', 'pytest', name])}"


def stop(process: subprocess.Popen) -> None:
    """End pytest with its workers, where it has not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.search")
    parser.add_argument("--minutes", type=float, required=True)
    options, arguments = parser.parse_known_args(words)
    begin, whole, repeats = time.monotonic(), 0, []
    while (left := begin + 60 * options.minutes - time.monotonic()) > 0:
        seed = secrets.randbits(32)
        print(
            f"RELATTN_SEED={seed}: {whole} seeds tried, {len(repeats)} failures, {left / 60:.1f} minutes left",
            flush=True,
        )
        failed, code = run(seed, left, arguments)
        new = [repeat(seed, name) for name in failed]
        print(*new, sep="\n", flush=True)
        repeats += new
        if code is not None and code > 1:
            print(f"pytest ended with {code}: this is no failure of a test, and the search ends")
            return 2
        whole += code is not None
    print(f"{whole} seeds tried whole, {len(repeats)} failures" + (", repeated by" if repeats else ""))
    print(*repeats, sep="\n")
    return 1 if repeats else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
