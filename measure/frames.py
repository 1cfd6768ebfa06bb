"""How many frames of relattn's Python a call enters, in how many files, and how often the file changes.

    python -m measure.frames
    python -m measure.frames --each native

A frame is a function that is entered; a generator is entered once, however often it goes on. In Python 3.11 a
comprehension is a frame of its own, from 3.12 on it is none. The file changes where a frame lies in another file than
the frame that was entered before it. What the call finds filled by calls before it is filled.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

import torch

import relattn
from relattn import AlibiBias, RelativeEmbedding, ShawEmbedding, relative_attention
from relattn.nn import KVCache, RelativeMultiheadAttention

Answer = TypeVar("Answer")

FOLDER = Path(relattn.__file__).parent
HEADS, LENGTH, WIDTH = 8, 128, 64
EARLIER = 3
"""Calls before the one that is counted."""


class Entered(NamedTuple):
    """A frame: its file, from relattn's folder on, and its function."""

    file: str
    function: str


class Count(NamedTuple):
    """What a call enters."""

    frames: int
    files: int
    changes: int

    @classmethod
    def of(cls, frames: list[Entered]) -> Count:
        """Of the frames in their order."""
        files = [frame.file for frame in frames]
        changes = sum(file != before for before, file in pairwise(files))
        return cls(len(files), len(set(files)), changes)


def frames_of(call: Callable[[], object]) -> list[Entered]:
    """The frames of relattn that one call enters in this thread, in their order."""
    found: list[Entered] = []
    generators: set[FrameType] = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or frame in generators or not path.is_relative_to(FOLDER):
            return
        if code.co_flags & inspect.CO_GENERATOR:
            generators.add(frame)
        found.append(Entered(str(path.relative_to(FOLDER)), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


@torch.no_grad()
def frames_of_a_later_call(name: str) -> list[Entered]:
    """Of the call of CALLS with that name, after some like it."""
    call = CALLS[name]()
    for _ in range(EARLIER):
        call()
    return frames_of(call)


def attention(backend: str, length: int = LENGTH) -> Callable[[], torch.Tensor]:
    """Causal attention with a row of relative keys for each offset."""
    encoding = RelativeEmbedding(WIDTH, length)
    query, key, value = (torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
    return lambda: relative_attention(query, key, value, encoding=encoding, is_causal=True, backend=backend)


def token() -> Callable[[], torch.Tensor]:
    """A token of a decoder, through a layer with two encodings and its cache."""
    encoding = ShawEmbedding(WIDTH, 16) + AlibiBias(HEADS)
    layer, cache = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, encoding), KVCache()
    prompt, one = (torch.randn(1, length, HEADS * WIDTH) for length in (LENGTH, 1))
    layer(prompt, is_causal=True, cache=cache)
    return lambda: layer(one, is_causal=True, cache=cache)


def triton() -> Callable[[], torch.Tensor]:
    """The same attention by kernels that do nothing."""
    return without_gpu(attention("triton"))


def triton_step() -> Callable[[], None]:
    """The gradients of a sum of its outputs, by query, key, value and table."""
    forward = attention("triton")
    return without_gpu(torch.enable_grad()(lambda: forward().sum().backward()))


def without_gpu(call: Callable[[], Answer]) -> Callable[[], Answer]:
    """The same call: the CPU takes the place of a GPU, and launches end at a driver that does nothing."""
    from tests.triton.silent import silent

    def silenced() -> Answer:
        with silent():
            return call()

    return silenced


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "native": partial(attention, "native"),
    "auto": partial(attention, "auto"),
    "token": token,
    "triton": triton,
    "triton step": triton_step,
}
"""What makes each call that is counted. Only the step records a gradient."""


def main() -> None:
    """Print the counts of all calls, or the frames of one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--each", choices=CALLS, help="print every frame of this call")
    each = parser.parse_args().each
    if each is not None:
        print(*(f"{file:40} {function}" for file, function in frames_of_a_later_call(each)), sep="\n")
        return
    print(f"{'call':12} {'frames':>7} {'files':>6} {'changes of file':>16}")
    for name in CALLS:
        frames, files, changes = Count.of(frames_of_a_later_call(name))
        print(f"{name:12} {frames:7} {files:6} {changes:16}")


if __name__ == "__main__":
    main()
