"""The parts of a call: what of its time, as cProfile finds it, and of its instructions, as callgrind does, is whose.

The time of a function is what it takes itself. A function of C that is not PyTorch's belongs to its caller, and so does
a function without a file, as a dataclass has; what that calls in C is left out. The profiler takes its own time when a
function is entered: half of it counts for the function and half for its caller.
"""

from __future__ import annotations

import cProfile
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import torch

from measure.frames import FOLDER
from relattn.backends.cpu.library import FILE

KERNELS, PYTORCH = "the kernels", "PyTorch"
PYTHON, OTHER_PYTHON, OTHER = "Python", "other libraries' Python", "other libraries"
LIBRARIES = KERNELS, PYTORCH, PYTHON, OTHER
LARGE = "backends", "equation"
"""The folders of relattn that have parts of their own."""
MEASURE, UNSEEN = Path(__file__).parent.parent, "unseen"
OF_PYTORCH = re.compile(r"torch|Tensor|method apply>")
LIBRARY = re.compile(r"c?ob=\((\d+)\)(?: (.*))?")


class Share(NamedTuple):
    """Of the time of a call with the profiler, and of what makes the profiler take time."""

    time: float
    events: float

    def percent(self, slower: float) -> float:
        """Of the call without the profiler, with which it takes so many times as long."""
        return 100 * (slower * self.time - (slower - 1) * self.events)


def kernel(function, call) -> None:
    """Run a function of the kernels as a function of Python, which the profiler sees."""
    function(call)


def shares_of(profile: cProfile.Profile) -> dict[str, Share]:
    """By file of relattn; KERNELS, PYTORCH and OTHER_PYTHON are like files."""
    seconds, events = defaultdict[str, float](float), Counter[str]()
    for entry in profile.getstats():
        file, callees = file_of(entry.code), entry.calls or ()
        if file not in (None, UNSEEN):
            inside = [callee for callee in callees if file_of(callee.code) is None]
            seconds[file] += entry.inlinetime + sum(callee.inlinetime for callee in inside)
            events[file] += sum(one.callcount for one in (entry, *callees, *inside))
    total = sum(seconds.values())
    return {file: Share(own / total, events[file] / events.total()) for file, own in seconds.items()}


def file_of(code: CodeType | str) -> str | None:
    """The file that a function lies in; None for its caller's. A function of C is given by its name."""
    if isinstance(code, str):
        return PYTORCH if OF_PYTORCH.search(code) else None
    path = Path(code.co_filename)
    if path.is_relative_to(MEASURE):
        return KERNELS if code is kernel.__code__ else UNSEEN
    if path.is_relative_to(FOLDER):
        return str(path.relative_to(FOLDER))
    if code.co_filename.startswith("<"):
        return None
    return PYTORCH if path.is_relative_to(Path(torch.__file__).parent) else OTHER_PYTHON


def by_part(shares: Mapping[str, Share]) -> dict[str, Share]:
    """A part is a folder of relattn, or a file that lies in none; the folders of LARGE are divided once more."""
    found: dict[str, Share] = {}
    for file, share in shares.items():
        names = file.split("/")
        part = "/".join(names[: 2 if names[0] in LARGE else 1])
        before = found.get(part, Share(0.0, 0.0))
        found[part] = Share(before.time + share.time, before.events + share.events)
    return found


def by_library(dump: str) -> Counter[str]:
    """The instructions that callgrind counted in LIBRARIES."""
    names: dict[str, str] = {}
    found: Counter[str] = Counter()
    library, of_a_callee = "", False
    for line in dump.splitlines():
        if named := LIBRARY.match(line):
            number, path = named.groups()
            names[number] = path or names[number]
            library = library_of(names[number]) if line.startswith("ob") else library
        elif line.startswith("calls="):
            of_a_callee = True  # the next line has what the callee took, and the callee's own lines have it too
        elif line[:1] and line[0] in "+-*0123456789":
            found[library] += 0 if of_a_callee else int(line.split()[-1])
            of_a_callee = False
    return found


def library_of(path: str) -> str:
    """The one of LIBRARIES that a file of machine code belongs to."""
    if path == str(FILE):
        return KERNELS
    if "/torch/" in path:
        return PYTORCH
    return PYTHON if "python" in Path(path).name or "lib-dynload" in path else OTHER


def largest(tables: Iterable[Mapping[str, float]]) -> list[str]:
    """The names in some tables of percentages: the kernels first, then the largest."""
    sums: Counter[str] = Counter()
    for one in tables:
        sums.update(one)  # pyright: ignore[reportArgumentType]
    return sorted(sums, key=lambda name: (name != KERNELS, -sums[name]))
