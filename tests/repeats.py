"""Run tests three times, the third in another order, and compare what they drew, digest by digest.

    python -m tests.repeats [what pytest takes]

The processes have other hash seeds too, so what is drawn in the order of a set is found out. Ends with 1 where digests
differ or a run is not green.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

RUNS = ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}, {"PYTHONHASHSEED": "3", "RELATTN_SHUFFLE": "1"})

Digests = dict[str, set[tuple[int, str]]]


def read(file: Path) -> Digests:
    """(draws, digest) of every name: several where they differ within a run, as a shared fixture's might."""
    found: Digests = defaultdict(set)
    for line in file.read_text().splitlines():
        one = json.loads(line)
        found[one["name"]].add((one["draws"], one["digest"]))
    return dict(found)


def differences(runs: list[Digests]) -> list[str]:
    """A line for each name that did not draw the same in all runs."""
    lines = []
    for name in sorted(set().union(*runs)):
        found = [run.get(name, set()) for run in runs]
        if any(len(one) != 1 for one in found) or len(set().union(*found)) != 1:
            lines.append(f"{name}: draws {[sorted(draws for draws, _ in one) for one in found]}")
    return lines


def main(arguments: list[str]) -> int:
    runs, green = [], True
    with tempfile.TemporaryDirectory() as folder:
        for number, settings in enumerate(RUNS, 1):
            file = Path(folder) / str(number)
            print(f"run {number} of {len(RUNS)}{', shuffled' if 'RELATTN_SHUFFLE' in settings else ''}", flush=True)
            environment = {**os.environ, **settings, "RELATTN_DIGEST": str(file)}
            done = subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], env=environment)
            green = green and done.returncode == 0
            runs.append(read(file))
    found = differences(runs)
    print(*found, sep="\n")
    draws = sum(draws for digests in runs[0].values() for draws, _ in digests)
    print(f"{len(runs[0])} tests, fixtures and modules, {draws} draws in a run: {len(found)} differ between the runs")
    print("every run was green" if green else "a run was not green")
    return 0 if green and not found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
