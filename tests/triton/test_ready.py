"""What is launched again without Triton's look-up: whatever Triton would have compiled alike, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from relattn.equation.problem import TABLES
from tests.triton.calls import BATCH, meta_axis, meta_call, numbers

pytest.importorskip("triton", reason="Triton is a package for Linux")
from triton import knobs
from triton.backends.compiler import BaseBackend, GPUTarget
from triton.compiler.compiler import CompiledKernel, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature, native_specialize_impl

from measure.triton_compiled import launches
from relattn.backends.triton.host import ready
from relattn.backends.triton.host.call import ExplicitAxis
from relattn.backends.triton.host.kernel_args import Rows
from relattn.backends.triton.host.opened import opened
from relattn.backends.triton.kernels import decoding
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.grid import grid

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


def kernel(a, b):
    """Its parameters are those of every launch here."""


def test_what_triton_tells_apart_is_told_apart() -> None:
    """Any two of these arguments are alike here where Triton's own binder gives them one specialization, only there.

    What no kernel is given is not among them: a bundle in one launch, and a tuple with that bundle alone in another.
    """
    function = JITFunction(kernel)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(function.signature, function.params, backend)
    theirs = {name: bind(argument, 16)[1] for name, argument in ARGUMENTS.items()}
    ours = {name: ready.specialization((argument, 16)) for name, argument in ARGUMENTS.items()}
    for one, other in itertools.product(ARGUMENTS, repeat=2):
        assert (ours[one] == ours[other]) == (theirs[one] == theirs[other]), (one, other)
    assert len(set(ours.values())) < len(ours), "some are alike"


def shapes(**changes: Any) -> dict[str, Any]:
    return {"length": 256, "highest": None, **changes}


def axis(number: int, rows: int = 33, **changes: Any) -> ExplicitAxis:
    """An explicit axis; a table of the changes may be None."""
    own = changes.pop("own", None)
    return meta_axis(number, rows, length=256, own=own)._replace(**changes)


CALLS = {
    "no table": meta_call(**shapes()),
    "other numbers": meta_call(**shapes(length=512)),
    "odd numbers": meta_call(**shapes(length=257)),
    "key mask": meta_call(**shapes(key_mask=torch.empty(BATCH, 256, dtype=torch.bool, device="meta"))),
    "mask": meta_call(**shapes(pair_mask=torch.empty(1, 1, 256, 256, dtype=torch.bool, device="meta"))),
    "added mask": meta_call(**shapes(pair_mask=torch.empty(1, 1, 256, 256, device="meta"))),
    "dropout": meta_call(**shapes(dropout_p=0.1, seed=numbers())),
    "softcap": meta_call(**shapes(softcap=30.0)),
    "a start as a tensor": meta_call(TABLES[:1], 33, **shapes(offset=numbers())),
    **{name: meta_call((name,), 33, **shapes()) for name in TABLES},
    "every table": meta_call(TABLES, 33, **shapes()),
    "an axis": meta_call(**shapes(axes=(axis(0),))),
    "odd rows": meta_call(**shapes(axes=(axis(0, 31),))),
    "it is not the sequence": meta_call(**shapes(axes=(axis(1),))),
    "an axis with limits": meta_call(**shapes(axes=(axis(0, highest=3),))),
    **{f"no {name} of an axis": meta_call(**shapes(axes=(axis(0, **{name: None}),))) for name in TABLES},
    **{f"own r of width {own}": meta_call(**shapes(axes=(axis(0, own=own),))) for own in (16, 32, 48, 64)},
    "an axis and a table": meta_call(TABLES[:1], 33, **shapes(axes=(axis(0),))),
    "two axes": meta_call(**shapes(axes=(axis(0), axis(1)))),
    "of which the first has own r": meta_call(**shapes(axes=(axis(0, own=32), axis(1)))),
    "of which the second has own r": meta_call(**shapes(axes=(axis(0), axis(1, own=32)))),
    "of which the first has no bias": meta_call(**shapes(axes=(axis(0, bias=None), axis(1)))),
    "of which the second has no bias": meta_call(**shapes(axes=(axis(0), axis(1, bias=None)))),
    **{
        f"{name} of {digits}": meta_call(**shapes(axes=(axis(1, queries=sides[name], keys=sides[name]),)))
        for digits, sides in {
            "a grid": grid(15, 15),
            "a grid of 16": grid(16, 16),
            "a grid behind a token": grid(15, 16, prefix_tokens=1),
            "a later part": grid(99, 16, first=48, length=256),
            "frames": grid(4, 8, 8),
        }.items()
        for name in ("y", "x")
    },
    "keys of a grid": meta_call(**shapes(axes=(axis(1, keys=grid(16, 16)["y"]),))),
    "queries that follow one another": meta_call(**shapes(axes=(axis(1, queries=ContiguousPositions(5)),))),
    "three axes": meta_call(**shapes(axes=(axis(0), axis(1), axis(2)))),
}


def test_launches_that_are_alike_have_one_specialization() -> None:
    """Any two launches of a kernel, of calls with axes of several kinds and numbers: where they are alike here, Triton
    finds the arguments alike, opened by nobody.
    """
    given: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, call in CALLS.items():
        for ordered in (False, True):
            for launch in launches(call, ordered):
                theirs = native_specialize_impl(BaseBackend, launch.given, False, True, True)
                given.setdefault(launch.kernel.__name__, []).append((name, ready.specialization(launch.given), theirs))
    told_apart = 0
    for kernel_name, several in given.items():
        for (one, ours, theirs), (other, our_other, their_other) in itertools.combinations(several, 2):
            assert ours != our_other or theirs == their_other, (kernel_name, one, other)
            told_apart += theirs != their_other
    assert told_apart > 1000


def test_the_same_launch_with_other_tensors_is_alike() -> None:
    """For every kernel, however many bundles it takes."""
    for name, call in CALLS.items():
        again = replace(call, **{each: torch.empty_like(getattr(call, each)) for each in ("query", "key", "value")})
        for one, other in zip(launches(call, False), launches(again, False), strict=True):
            assert ready.specialization(one.given) == ready.specialization(other.given), name


class Place(NamedTuple):
    at: int | None
    step: int | None


class Grid(NamedTuple):
    """A bundle with a tuple of any length, and no bundle in it."""

    terms: tuple[tuple[int, int], ...]
    first: int | None


class Axis(NamedTuple):
    side: Place | Grid
    other: Place | None
    doublings: tuple[None, ...]


class Every(NamedTuple):
    """Each way in which a bundle may hold another."""

    place: Place
    axis: Axis
    or_number: Place | int | None
    or_deeper: Axis | None
    axes: tuple[Axis, ...]
    more: tuple[Place, ...] | None


PLACES = [Place(None, None), Place(1, None), Place(None, 1), Place(1, 1)]
GRIDS = [Grid((), 1), Grid(((1, 1),), None), Grid(((1, 1),), 1), Grid(((1, 1), (1, 1)), 1)]
AXES = [
    Axis(side, other, (None,) * doublings)
    for side in (*PLACES, *GRIDS)
    for other in (None, *PLACES[::3])
    for doublings in (0, 1, 2)
]
FIRST = Every(PLACES[0], AXES[0], None, None, (), None)
ROWS = [
    *(FIRST._replace(place=place, or_number=other) for place in PLACES for other in (None, 1, *PLACES)),
    *(FIRST._replace(axis=axis, or_deeper=other) for axis in AXES[::2] for other in (None, *AXES[::3])),
    *(FIRST._replace(axes=axes) for count in (1, 2, 3) for axes in itertools.product(AXES[::9], repeat=count)),
    *(FIRST._replace(axes=(one, other)) for one in AXES[:20] for other in AXES[:20]),
    *(FIRST._replace(more=more) for count in (0, 1, 2) for more in itertools.product(PLACES, repeat=count)),
]


def test_form_and_leaves_tell_what_the_row_was() -> None:
    """No two rows of bundles, other in members, Nones, lengths or kinds, have the same; `repr` says what differs."""
    rows: list[tuple] = [(), (None,), (1,), ((),), ((1,),), ((1, 1),), ((1,), 1), ((), 1), (1, ()), ((1, (1,)),)]
    rows += [(each,) for each in ROWS] + [(each, None, 1) for each in ROWS[::5]] + [(1, each) for each in ROWS[::5]]
    rows += [(one, other) for one in (*PLACES, *GRIDS, None, 1) for other in (*PLACES, *GRIDS, None, 1)]
    rows += [((one, other),) for one in (*PLACES, *GRIDS, None, 1) for other in (*PLACES, *GRIDS, None, 1)]
    told = {opened(row): repr(row) for row in rows}
    assert all(told[opened(row)] == repr(row) for row in rows)
    assert len(rows) > 1000


def test_leaves_are_of_no_named_tuple() -> None:
    """That is what Triton takes its time for."""

    def holds_bundles(leaf: object) -> bool:
        return isinstance(leaf, tuple) and (hasattr(leaf, "_fields") or any(map(holds_bundles, leaf)))

    given = [launch.given for call in CALLS.values() for ordered in (False, True) for launch in launches(call, ordered)]
    for row in [*given, *((each,) for each in ROWS)]:
        assert not any(map(holds_bundles, opened(row)[1]))


class Compiled(CompiledKernel):
    """Notes what it is launched with."""

    def __init__(self) -> None:
        self.launched: list[tuple] = []
        self.hooked: list[tuple] = []
        self.function = self.packed_metadata = None

    def run(self, *given: Any) -> None:
        assert given[3:9] == ("stream 7", None, None, None, None, None)
        self.launched.append((given[:3], given[9:]))

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *arguments: self.hooked.append((grid, arguments))


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current one of the current device, the seventh."""
    active = SimpleNamespace(get_current_device=lambda: 7, get_current_stream=lambda device: f"stream {device}")
    monkeypatch.setattr(ready, "driver", SimpleNamespace(active=active))


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_hooks_of_triton_are_called(hook: str, stream: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's own launch, as long as there are any: in the chain, or in its place."""
    kernel = Compiled()
    again = ready.Ready(kernel, (64,))
    again.launch(3, (1, 2))
    assert (kernel.launched, kernel.hooked) == ([((3, 1, 1), (1, 2, 64))], [])
    chain = getattr(knobs.runtime, hook)
    chain.add(print)
    try:
        again.launch(3, (1, 2))
    finally:
        chain.remove(print)
    assert kernel.hooked == kernel.launched
    monkeypatch.setattr(knobs.runtime, hook, print)
    again.launch(3, (1, 2))
    assert (len(kernel.launched), len(kernel.hooked)) == (1, 2)


class Searched:
    """In place of a kernel that Triton looks up: notes the look-ups, and what they return."""

    def __init__(self, name: str) -> None:
        self.__name__, self.found = name, []

    def __getitem__(self, grid: tuple[int]) -> Callable[..., Compiled]:
        def run(*arguments: object, **constants: int) -> Compiled:
            self.found.append(Compiled())
            return self.found[-1]

        return run


def test_few_queries_are_looked_up_once(stream: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again where the number of keys is a multiple of 16 no more, or another width is asked for."""
    part, merge = Searched("split_keys_kernel"), Searched("merge_kernel")
    monkeypatch.setattr(decoding, "split_keys_kernel", part)
    monkeypatch.setattr(decoding, "merge_kernel", merge)

    def decode(keys: int, width: int = 64) -> None:
        key = torch.empty(1, 2, keys, width, device="meta")
        call = meta_call(query=torch.empty(1, 2, 1, width, device="meta"), key=key, value=key, offset=1 - keys)
        decoding.few_queries(call)

    for keys in (4096, 8192, 4096):
        decode(keys)
    assert (len(part.found), len(merge.found)) == (1, 1)
    (grid, arguments), _ = part.found[0].launched
    assert grid == (2 * decoding.MAX_SPLITS, 1, 1)
    assert arguments[-4:] == (64, 64, 64, decoding.NUMBERS // 64), "the constants, in the kernel's order"
    assert arguments[0].keys == 8192, "what is launched again has its own arguments"
    assert merge.found[0].launched[0][1][-2:] == (64, decoding.MAX_SPLITS)
    decode(4097)
    decode(4096, width=32)
    assert len(part.found) == 3


def test_what_the_interpreter_runs_is_not_kept() -> None:
    ready.keep(("a kernel",), (), None, (16,))
    assert not ready.remembered


def test_the_kernel_of_the_same_specialization_is_recalled() -> None:
    """In whichever order they were kept. In another list there is none, nor for other arguments."""
    several = {1: (1, None), 16: (16, None), 17: (17, None), "there": (17, 17)}
    for owned, arguments in enumerate(several.values()):
        ready.keep(("a kernel",), arguments, Compiled(), (), owned)
    for owned, arguments in enumerate(several.values()):
        again = ready.recall(("a kernel",), arguments)
        assert again is not None and again.owned == owned
    again = ready.recall(("a kernel",), (33, None))
    assert again is not None and again.owned == 2, "33 is compiled as 17"
    assert ready.remembered["a kernel",][0][1] is again, "what was launched last is compared first"
    assert ready.recall(("another",), (16, None)) is None
    assert ready.recall(("a kernel",), (None, 16)) is None
