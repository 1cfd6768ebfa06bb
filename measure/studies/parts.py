"""The parts of a call: how much of its time each takes, by cProfile, and of its instructions, by callgrind.

The profiler sees functions and gives each the time that it takes itself. A function of C that is not PyTorch's counts
for its caller, and so does what is no call: an operator between tensors, an attribute. The profiler takes time of its
own when a function is entered: half of it lies in the function and half in its caller.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import torch

from measure.frames import FOLDER
from relattn.backends.cpu.library import FILE

KERNELS, PYTORCH, GENERATED = "the kernels", "PyTorch", "generated Python"
PYTHON, OTHER_PYTHON, OTHER = "Python", "other libraries' Python", "libc and others"
LIBRARIES = KERNELS, PYTORCH, PYTHON, OTHER
LARGE = "backends", "equation"
"""The folders of relattn that are several parts."""
MEASURE, STUDY = Path(__file__).parent.parent, "the study itself"
OF_PYTORCH = re.compile(r"torch|Tensor|method apply>")
LIBRARY = re.compile(r"c?ob=\((\d+)\)(?: (.*))?")


class Share(NamedTuple):
    """Of the time of a call under the profiler, and of the profiler's own time in it."""

    time: float = 0.0
    profiler: float = 0.0

    def percent(self, slower: float) -> float:
        """Of the call without the profiler, under which it takes `slower` times as long."""
        return 100 * (slower * self.time - (slower - 1) * self.profiler)


def kernel(function, call) -> None:
    """Run a function of the kernels as a function of Python, which the profiler sees."""
    function(call)


def shares_of(before: list, after: list) -> dict[str, Share]:
    """By file of relattn, from a profile's statistics before and after a call.

    KERNELS, PYTORCH, GENERATED and OTHER_PYTHON stand like files. What is the study's is left out.
    """
    seconds, entered = defaultdict[str, float](float), Counter[str]()
    for sign, entry in [*((-1, entry) for entry in before), *((1, entry) for entry in after)]:
        file, callees = file_of(entry.code), entry.calls or ()
        if file not in (None, STUDY):
            inside = [callee for callee in callees if file_of(callee.code) is None]
            seconds[file] += sign * sum(one.inlinetime for one in (entry, *inside))
            entered[file] += sign * sum(one.callcount for one in (entry, *callees, *inside))
    total = sum(seconds.values())
    return {file: Share(own / total, entered[file] / entered.total()) for file, own in seconds.items()}


def file_of(code: CodeType | str) -> str | None:
    """The file that a function lies in; None for its caller's. A function of C is given by its name."""
    if isinstance(code, str):
        return PYTORCH if OF_PYTORCH.search(code) else None
    path = Path(code.co_filename)
    if path.is_relative_to(MEASURE):
        return KERNELS if code is kernel.__code__ else STUDY
    if path.is_relative_to(FOLDER):
        return str(path.relative_to(FOLDER))
    if code.co_filename == "<string>":
        return GENERATED
    return PYTORCH if path.is_relative_to(Path(torch.__file__).parent) else OTHER_PYTHON


def by_part(files: Mapping[str, float]) -> dict[str, float]:
    """A part is a folder of relattn, or a file that lies in none; the folders of LARGE are divided once more."""
    found = defaultdict[str, float](float)
    for file, amount in files.items():
        names = file.split("/")
        found["/".join(names[: 2 if names[0] in LARGE else 1])] += amount
    return found


def by_library(dump: str) -> Counter[str]:
    """The instructions that callgrind counted in each of LIBRARIES."""
    paths: dict[str, str] = {}
    found: Counter[str] = Counter()
    library, of_a_callee = "", False
    for line in dump.splitlines():
        if named := LIBRARY.match(line):
            number, path = named.groups()
            paths[number] = path or paths[number]
            library = library_of(paths[number]) if line.startswith("ob") else library
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
