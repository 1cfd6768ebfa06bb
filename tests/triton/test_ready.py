"""What is launched again without Triton's look-up: whatever Triton would have compiled alike, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
import torch

from tests.triton.calls import meta_call

pytest.importorskip("triton", reason="Triton is a package for Linux")
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from relattn.backends.triton import decoding, ready
from relattn.backends.triton.diagonals import Sums as SumsOfTables
from relattn.backends.triton.inputs import Inputs, Listed, Mask, Rows
from relattn.backends.triton.known import Known

NUMBERS = torch.zeros(64, dtype=torch.float32)
ARGUMENTS: dict[str, Any] = {
    "16": 16, "48": 48, "17": 17, "18": 18, "0": 0, "1": 1, "-1": -1, "-16": -16, "2^31 - 1": 2**31 - 1, "2^31": 2**31,
    "2^31 + 8": 2**31 + 8, "1.0": 1.0, "0.5": 0.5, "none": None, "float32": NUMBERS, "more of it": torch.zeros(128),
    "half": NUMBERS.half(), "bytes": NUMBERS.to(torch.uint8), "from 16 bytes": NUMBERS[4:], "from 4 bytes": NUMBERS[1:],
    "rows": Rows(NUMBERS, 64, 32, 16), "other rows": Rows(NUMBERS, 96, 48, 16), "odd rows": Rows(NUMBERS, 64, 32, 17),
    "rows of 1": Rows(NUMBERS, 64, 32, 1), "rows from 4 bytes": Rows(NUMBERS[1:], 64, 32, 16), "empty": (),
    "nested": (Rows(NUMBERS, 64, 32, 16), (None, 16)),
    "nested, odd": (Rows(NUMBERS, 64, 32, 16), (None, 15)), "nested, there": (Rows(NUMBERS, 64, 32, 16), (16, 16)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "remembered", {})
    monkeypatch.setattr(decoding, "remembered", ready.remembered)


def kernel(a, b):
    """Its parameters are those of every launch here."""


def test_what_triton_tells_apart_is_told_apart() -> None:
    """Any two of these arguments have one key where Triton's own binder gives them one specialization, and only there.

    What no kernel is given is not among them: a bundle in one launch, and a tuple with that bundle alone in another.
    """
    function = JITFunction(kernel)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(function.signature, function.params, backend)
    theirs = {name: bind(argument, 16)[1] for name, argument in ARGUMENTS.items()}
    ours = {name: ready.specialization((argument, 16)) for name, argument in ARGUMENTS.items()}
    for one, other in itertools.product(ARGUMENTS, repeat=2):
        assert (ours[one] == ours[other]) == (theirs[one] == theirs[other]), (one, other)
        assert ours[one] != ours[other] or hash(ours[one]) == hash(ours[other])
    assert len(set(ours.values())) < len(ours), "some are alike"


def test_a_bundle_that_may_be_absent_begins_with_a_tensor() -> None:
    """So its None, and what it begins with, tell its members from those of others in one row of all."""
    absent = 0
    for bundle in (Inputs, Mask, Known, Listed, SumsOfTables):
        for hint in get_type_hints(bundle).values():
            for of in get_args(hint):
                if hasattr(of, "_fields"):
                    absent += 1
                    assert next(iter(get_type_hints(of).values())) is torch.Tensor, (bundle, of)
    assert absent > 10


class Compiled(CompiledKernel):
    """Notes what it is launched with."""

    def __init__(self) -> None:
        self.launched: list[tuple] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *arguments: self.launched.append((grid, arguments))


class Searched:
    """In place of a kernel that Triton looks up: notes the look-ups, and what they return."""

    def __init__(self, name: str) -> None:
        self.__name__, self.found = name, []

    def __getitem__(self, grid: tuple[int]) -> Callable[..., Compiled]:
        def run(*arguments: object, **constants: int) -> Compiled:
            self.found.append(Compiled())
            return self.found[-1]

        return run


def test_few_queries_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again where the number of keys is a multiple of 16 no more, or another width is asked for."""
    part, merge = Searched("part_kernel"), Searched("merge_kernel")
    monkeypatch.setattr(decoding, "part_kernel", part)
    monkeypatch.setattr(decoding, "merge_kernel", merge)

    def decode(keys: int, width: int = 64) -> None:
        key = torch.empty(1, 2, keys, width, device="meta")
        call = meta_call(query=torch.empty(1, 2, 1, width, device="meta"), key=key, value=key, offset=1 - keys)
        decoding.few_queries(call)

    for keys in (4096, 8192, 4096):
        decode(keys)
    assert (len(part.found), len(merge.found)) == (1, 1)
    (grid, arguments), _ = part.found[0].launched
    assert grid == (2 * decoding.MOST_PARTS, 1, 1)
    assert arguments[-4:] == (64, 64, 64, decoding.NUMBERS // 64), "the constants, in the kernel's order"
    assert arguments[0].keys == 8192, "what is launched again has its own arguments"
    assert merge.found[0].launched[0][1][-2:] == (64, decoding.MOST_PARTS)
    decode(4097)
    decode(4096, width=32)
    assert len(part.found) == 3


def test_what_the_interpreter_runs_is_not_kept() -> None:
    ready.keep(("a kernel",), None, (16,))
    assert not ready.remembered
