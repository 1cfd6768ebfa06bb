"""Which tiles a kernel is run in: what is timed, what is remembered, and where nothing is.

The kernel is a stand-in that notes how it is run, its times are made up, and the GPU is a name: none is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from relattn.equation.problem import TABLES
from tests.triton.calls import meta_axis, meta_call

pytest.importorskip("triton", reason="Triton is a package for Linux")
from triton.compiler.compiler import CompiledKernel

autotune = pytest.importorskip("relattn.backends.triton.host.autotune", reason="Triton is a package for Linux")
tile_configs = pytest.importorskip("relattn.backends.triton.host.tile_configs", reason="Triton is a package for Linux")
ready = pytest.importorskip("relattn.backends.triton.host.ready", reason="Triton is a package for Linux")
TileConfig = tile_configs.TileConfig

LARGE, SMALL = meta_call(), meta_call(length=512)
FIRST, LAST = TileConfig(64, 4, 2), TileConfig(128, 8, 2)
A_PAIR_OF_TABLES = ("relative_keys", "relative_values")
ALONE = meta_call(A_PAIR_OF_TABLES, 33, width=256)
"""There is one size for it."""


class Compiled(CompiledKernel):
    """What Triton would return from a launch of the stand-in: launched again, it notes how."""

    def __init__(self, kernel: Kernel, chosen: Any) -> None:
        self.stand_in, self.chosen = kernel, chosen
        self.function = self.packed_metadata = None

    def run(self, *given: object) -> None:
        assert given[:3] == (4096 // self.chosen[0], 1, 1)
        assert given[-1] == self.chosen[0], "the last constant is the tile"
        self.stand_in.runs.append(self.chosen)


class Kernel:
    """A kernel that takes `times` milliseconds by sizes, and has no room for sizes that raise an error instead."""

    __name__, cache_key = "stand_in", "its source"

    def __init__(self, times: dict[Any, float] | None = None, errors: dict[Any, Exception] | None = None) -> None:
        self.times, self.errors = times or {}, errors or {}
        self.runs: list[Any] = []
        self.refused, self.searched, self.precision = 0, 0, "ieee"

    def __getitem__(self, grid: tuple[int]) -> Callable[..., Compiled]:
        return self.running(grid)

    def running(self, grid: tuple[int]) -> Callable[..., Compiled]:
        def run(
            *arguments: object, TILE: int, num_warps: int, num_stages: int, maxnreg: int,
            default_dot_input_precision: str, **widths: int,
        ) -> Compiled:  # fmt: skip
            chosen = TileConfig(TILE, num_warps, num_stages)
            assert (maxnreg, default_dot_input_precision) == (255, self.precision)
            if chosen in self.errors:
                self.refused += 1
                raise self.errors[chosen]
            assert grid == (4096 // TILE,)
            self.runs.append(chosen)
            self.searched += 1
            return Compiled(self, chosen)

        return run

    def launched(self, call: Any = LARGE, *arguments: object, **given: Any) -> Any:
        """The sizes in which a launch runs last: those whose numbers stay."""
        autotune.launch(self, call, lambda owned: 4096 // owned, arguments, **given)
        return self.runs[-1]


class Clock(list):
    """In place of the GPU's: notes every kernel that is timed."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, run: Callable[[], None]) -> float:
        run()
        self.append(self.kernel.runs[-1])
        return self.kernel.times.get(self.kernel.runs[-1], 5.0)


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A GPU of which nothing is known yet; what a test changes of it: `capturing`, `arch`, `gpu`."""
    from triton.backends.compiler import GPUTarget

    state = SimpleNamespace(capturing=False, arch=89, gpu="L40S")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(autotune, "INTERPRETED", False)
    monkeypatch.setattr(tile_configs, "INTERPRETED", False)
    active = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", state.arch, 32), get_current_device=int, get_current_stream=int
    )
    for module in (autotune, ready):
        monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: state.gpu)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    state.forget = lambda: [memory.clear() for memory in (autotune._fastest, autotune._first, ready.remembered)]
    state.forget()
    request.addfinalizer(state.forget)
    state.empty_the_disk = lambda name="empty": monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / str(name)))
    return state


@pytest.fixture
def clock(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of a kernel that runs fastest in LAST."""
    timing = Clock(Kernel({LAST: 1.0}))
    monkeypatch.setattr(autotune, "_timed", timing)
    return timing


def of(call: Any, arch: int = 89) -> list[Any]:
    """The sizes that the stand-in would be timed in; arch: that of `machine`."""
    return tile_configs.tile_configs(Kernel.__name__, call, arch)


def out_of_shared_memory() -> Exception:
    from triton.runtime.errors import OutOfResources

    return OutOfResources(2**20, 227 * 1024, "shared memory")


def test_the_fastest_is_taken_and_remembered(clock: Clock, machine: SimpleNamespace) -> None:
    assert clock.kernel.launched() == LAST
    assert clock == of(LARGE)
    assert (clock[0], clock[-1]) == (FIRST, LAST)
    machine.empty_the_disk()
    assert clock.kernel.launched() == LAST
    assert len(clock) == len(of(LARGE)), "a second call times nothing"


@pytest.mark.parametrize("call", [LARGE, SMALL, ALONE], ids=["large", "small", "one size"])
def test_a_known_launch_is_not_looked_up(call: Any, clock: Clock) -> None:
    """Other numbers of Triton's specialization are; nothing is timed for them."""
    taken = clock.kernel.launched(call, 16)
    before = clock.kernel.searched, len(clock)
    for number in (16, 48):
        assert clock.kernel.launched(call, number) == taken
        assert (clock.kernel.searched, len(clock)) == before
    assert clock.kernel.launched(call, 17) == taken
    assert (clock.kernel.searched, len(clock)) == (before[0] + 1, before[1])


@pytest.mark.parametrize("other", ["width", "more", "precision", "length", "kernel"])
def test_what_else_decides_is_looked_up(other: str, clock: Clock) -> None:
    """Whatever is no argument, beside the same arguments."""
    clock.kernel.launched(LARGE, 16)
    call, given = LARGE, {}
    match other:
        case "width":
            call = meta_call(width=80)
        case "more":
            given = {"more": {"DA": 80}}
        case "precision":
            call, clock.kernel.precision = replace(LARGE, precision="tf32x3"), "tf32x3"
        case "length":
            call = meta_call(length=8192)
        case "kernel":
            clock.kernel = Kernel()
            clock.kernel.__name__ = "another"
    before = clock.kernel.searched
    clock.kernel.launched(call, 16, **given)
    assert clock.kernel.searched > before


OWN, OF_KEYS = meta_call(length=256, width=128), {"tables": TABLES[:1], "length": 512}
PAIRS_OF_CALLS = {
    "heads that share keys": (OWN, replace(OWN, key=OWN.key[:, :4], value=OWN.value[:, :4])),
    "few rows, and many": (meta_call(rows=33, **OF_KEYS), meta_call(rows=257, **OF_KEYS)),
    "few rows, and as many as a window has offsets": (
        meta_call(rows=33, **OF_KEYS), meta_call(rows=33, lowest=-126, **OF_KEYS)
    ),
}  # fmt: skip
"""To the first of both an H100 gives larger tiles."""


@pytest.mark.parametrize("name", PAIRS_OF_CALLS)
def test_sizes_of_a_small_call_depend_on_no_other_call(name: str, machine: SimpleNamespace) -> None:
    machine.arch = tile_configs.HOPPER
    expected = [of(call, machine.arch)[0] for call in PAIRS_OF_CALLS[name]]
    assert expected[0] != expected[1]
    for order in ((0, 1), (1, 0)):
        machine.forget()
        kernel = Kernel()
        for which in order:
            call = PAIRS_OF_CALLS[name][which]
            group = call.query.shape[1] // call.key.shape[1]
            assert kernel.launched(call, group) == expected[which]


def test_one_size_alone_is_not_timed(clock: Clock) -> None:
    assert of(ALONE) == [clock.kernel.launched(ALONE)]
    assert clock == []


def test_what_does_not_fit_is_passed_over(clock: Clock, machine: SimpleNamespace) -> None:
    from triton.runtime.errors import PTXASError

    for refused, taken in ((LAST, FIRST), (FIRST, LAST)):
        machine.forget()
        machine.empty_the_disk(taken)
        clock.clear()
        clock.kernel.errors = {refused: PTXASError("too much shared data")}
        assert clock.kernel.launched() == taken
        assert clock == [taken]


def test_smaller_tiles_where_no_candidate_fits(clock: Clock) -> None:
    clock.kernel.errors = {refused: out_of_shared_memory() for refused in of(LARGE)}
    for call in (LARGE, SMALL, LARGE):
        assert clock.kernel.launched(call) == tile_configs.SMALLEST
    assert clock == []


@pytest.mark.parametrize("call", [LARGE, SMALL], ids=["large", "small"])
def test_what_fits_in_no_size_raises(call: Any, clock: Clock) -> None:
    from triton.runtime.errors import OutOfResources

    refused = [*of(call), tile_configs.SMALLEST]
    clock.kernel.errors = {each: out_of_shared_memory() for each in refused}
    with pytest.raises(OutOfResources, match="shared memory"):
        clock.kernel.launched(call)


def test_an_error_of_another_kind_is_not_hidden(clock: Clock) -> None:
    clock.kernel.errors = {LAST: RuntimeError("an illegal memory access was encountered")}
    with pytest.raises(RuntimeError, match="illegal memory access"):
        clock.kernel.launched()


def test_a_later_process_reads_what_an_earlier_one_timed(clock: Clock, machine: SimpleNamespace) -> None:
    clock.kernel.launched()
    clock.clear()
    machine.forget()
    clock.kernel.times = {FIRST: 0.1}
    assert clock.kernel.launched() == LAST
    assert clock == []


@pytest.mark.parametrize(
    "other", ["source", "arch", "gpu", "dtype", "tables", "width", "precision", "length", "tile_configs"]
)
def test_another_kind_is_timed_on_its_own(
    other: str, clock: Clock, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a kernel is compiled for; also where the first is known on disk alone."""
    call, argument = LARGE, torch.empty(1, dtype=torch.bfloat16)
    clock.kernel.launched(call, argument)
    clock.clear()
    machine.forget()
    match other:
        case "source":
            monkeypatch.setattr(clock.kernel, "cache_key", "another source", raising=False)
        case "arch":
            machine.arch = 80
        case "gpu":
            machine.gpu = "H100 PCIe"
        case "dtype":
            argument = argument.to(torch.float16)
        case "tables":
            argument = None
        case "width":
            call = meta_call(width=80)
        case "precision":
            call, clock.kernel.precision = replace(LARGE, precision="tf32x3"), "tf32x3"
            monkeypatch.setattr(autotune, "tile_configs", lambda kernel, call, arch: [FIRST, LAST])
        case "length":
            call = meta_call(length=8192)
        case "tile_configs":
            monkeypatch.setattr(autotune, "tile_configs", lambda kernel, call, arch: [LAST, FIRST])
    clock.kernel.launched(call, argument)
    assert clock == autotune.tile_configs(Kernel.__name__, call, machine.arch)


def test_what_another_process_found_meanwhile_is_taken(
    clock: Clock, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two searches at once: both processes go on with the sizes of the first that was done."""
    clock.kernel.launched()
    machine.forget()
    found, before = autotune._read, [None]  # nothing yet at the first look
    monkeypatch.setattr(autotune, "_read", lambda cache, name: before.pop() if before else found(cache, name))
    clock.kernel.times = {FIRST: 0.5}
    assert clock.kernel.launched() == LAST
    assert FIRST in clock, "it was timed, and in vain"


SLOW, QUICK = 30.0, 4.0


@pytest.mark.parametrize(("milliseconds", "runs"), [(SLOW, 1), (QUICK, 5)])
def test_runs_are_timed_until_there_are_enough(milliseconds: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first one, which may compile; one long run is enough."""
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: milliseconds)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    seen: list[None] = []
    assert autotune._timed(lambda: seen.append(None)) == milliseconds
    assert len(seen) == 1 + runs


def no_clock(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, why: str) -> Any:
    """Make it so that nothing may be timed; returns a call."""
    if why == "capturing":
        machine.capturing = True
    elif why == "interpreted":
        monkeypatch.setattr(autotune, "INTERPRETED", True)
    elif why == "deterministic":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    return SMALL if why == "small" else LARGE


@pytest.mark.parametrize("why", ["small", "deterministic", "capturing", "interpreted"])
def test_without_a_clock_the_first_that_fits_is_taken(
    why: str, clock: Clock, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs once, and keeps no later call from being timed."""
    with monkeypatch.context() as patches:
        call = no_clock(machine, patches, why)
        first, *others = [*of(call), tile_configs.SMALLEST]
        if why != "interpreted":
            clock.kernel.errors, first = {first: out_of_shared_memory()}, others[0]
        assert [clock.kernel.launched(call), clock.kernel.launched(call)] == [first, first] == clock.kernel.runs
        assert clock.kernel.refused == len(clock.kernel.errors), "what does not fit is tried once"
        assert clock == []
    machine.capturing = False
    assert clock.kernel.launched() == LAST
    assert clock != []


@pytest.mark.parametrize("why", ["small", "deterministic"])
def test_such_calls_have_the_same_sizes_once_the_fastest_are_known(
    why: str, clock: Clock, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.kernel.launched()
    assert clock.kernel.launched(no_clock(machine, monkeypatch, why)) == FIRST


def test_a_captured_call_takes_the_fastest_once_they_are_known(clock: Clock, machine: SimpleNamespace) -> None:
    clock.kernel.launched()
    machine.capturing = True
    assert clock.kernel.launched() == LAST
    machine.forget()
    assert clock.kernel.launched() == LAST, "from the disk"


@pytest.mark.parametrize("call", [LARGE, SMALL], ids=["large", "small"])
def test_what_a_kernel_adds_to_is_zero_before_the_run_that_stays(call: Any, clock: Clock) -> None:
    """Timed runs add to it, too."""
    sums, before = torch.zeros(3), []
    run = clock.kernel.running

    def adding(grid: tuple[int]) -> Callable[..., None]:
        def one(*arguments: object, **given: Any) -> None:
            run(grid)(*arguments, **given)
            before.append(sums.clone())
            sums.add_(1)

        return one

    clock.kernel.running = adding
    clock.kernel.launched(call, added=[sums])
    clock.kernel.launched(call, added=[sums.zero_()])
    assert sums.tolist() == [1, 1, 1]
    assert not before[-1].any()


HALF, KEYS, BIAS = torch.float16, ("relative_keys",), ("bias",)
IN_PARTS = {"dtype": torch.float32, "precision": "tf32x3"}
A_FLOAT_MASK = {"pair_mask": torch.empty(1, 1, 4096, 4096, dtype=HALF, device="meta")}


@pytest.mark.parametrize(
    ("kernel", "changes", "expected"),
    [
        ("forward_kernel", {}, [(64, 4, 2), (128, 8, 2)]),
        ("forward_kernel", {"tables": BIAS}, [(64, 4, 2), (64, 4, 3)]),
        ("forward_kernel", {"tables": KEYS, "rows": 8191}, [(64, 4, 2), (64, 4, 3)]),
        ("forward_kernel", {"dropout_p": 0.1}, [(64, 4, 2), (128, 8, 2)]),
        ("forward_kernel", {"dropout_p": 0.1, "tables": BIAS}, [(32, 4, 2), (64, 4, 2)]),
        ("queries_kernel", {"dropout_p": 0.1}, [(32, 4, 2), (64, 4, 2)]),
        ("forward_kernel", {"tables": BIAS, "width": 128}, [(32, 4, 2), (64, 4, 2)]),
        ("forward_kernel", {"tables": KEYS, "rows": 33, "width": 65}, [(32, 4, 2), (64, 4, 2)]),
        ("forward_kernel", {"tables": A_PAIR_OF_TABLES}, [(32, 4, 2), (64, 4, 2)]),
        ("forward_kernel", {"width": 128}, [(64, 4, 2), (128, 8, 2)]),
        ("forward_kernel", {"width": 136}, [(32, 4, 2), (64, 4, 2)]),
        ("forward_kernel", {"tables": KEYS, "width": 136}, [(16, 2, 2)]),
        ("forward_kernel", {"dtype": torch.float32}, [(32, 4, 2), (64, 4, 2)]),
        ("forward_kernel", {"dtype": torch.float32, "tables": KEYS}, [(16, 4, 2), (32, 4, 2)]),
        ("keys_kernel", {"dtype": torch.float32, "tables": KEYS}, [(16, 4, 2), (32, 4, 2)]),
        ("keys_kernel", {"dtype": torch.float32, "tables": BIAS}, [(16, 4, 2), (32, 4, 2)]),
        ("forward_kernel", {"dtype": torch.float32, "tables": KEYS, "width": 128}, [(16, 8, 1), (16, 8, 2)]),
        ("queries_kernel", {"dtype": torch.float32, "tables": A_PAIR_OF_TABLES}, [(16, 8, 1), (16, 8, 2)]),
        ("keys_kernel", {"dtype": torch.float32, "tables": KEYS, "width": 136}, [(16, 8, 1)]),
        ("keys_kernel", IN_PARTS, [(16, 2, 2), (32, 4, 2)]),
        ("forward_kernel", IN_PARTS, [(16, 1, 2), (32, 4, 2)]),
        ("tables_kernel", {"tables": BIAS, **IN_PARTS}, [(16, 1, 2), (32, 4, 2)]),
        ("queries_kernel", {}, [(64, 4, 2), (128, 8, 2)]),
        ("queries_kernel", {"tables": BIAS, "dtype": HALF}, [(32, 4, 2), (64, 4, 2)]),
        ("queries_kernel", {"tables": KEYS, "rows": 8191}, [(32, 4, 2), (64, 4, 2)]),
        ("keys_kernel", {"tables": KEYS, "width": 128}, [(32, 4, 2), (64, 4, 2)]),
        ("queries_kernel", {"tables": KEYS, "width": 128}, [(32, 4, 2), (64, 4, 2)]),
        ("queries_kernel", {"tables": A_PAIR_OF_TABLES, "width": 128}, [(16, 2, 2), (32, 4, 2)]),
        ("queries_kernel", {"tables": KEYS, "width": 72, "dropout_p": 0.1}, [(16, 2, 2), (32, 4, 2)]),
        ("keys_kernel", {"tables": A_PAIR_OF_TABLES, "width": 128, "dropout_p": 0.1}, [(16, 2, 2), (32, 4, 2)]),
        ("queries_kernel", {"tables": TABLES}, [(16, 2, 2), (32, 4, 2)]),
        ("forward_kernel", {"tables": TABLES, "width": 128}, [(16, 2, 2)]),
        ("tables_kernel", {"tables": TABLES, "width": 128}, [(16, 2, 2)]),
        ("queries_kernel", {"tables": TABLES, "width": 128, "dtype": torch.float32}, [(16, 8, 1), (16, 8, 2)]),
        ("forward_kernel", {"tables": KEYS, **A_FLOAT_MASK}, [(64, 4, 2), (64, 4, 3)]),
        ("queries_kernel", {"tables": KEYS, **A_FLOAT_MASK}, [(32, 4, 2)]),
        ("mask_kernel", {"tables": KEYS, **A_FLOAT_MASK}, [(32, 4, 2)]),
        ("mask_kernel", {"tables": KEYS, "width": 128, **A_FLOAT_MASK}, [(32, 4, 2)]),
        ("mask_kernel", {"tables": A_PAIR_OF_TABLES, **A_FLOAT_MASK}, [(16, 1, 2)]),
        ("several_kernel", {"tables": KEYS, **A_FLOAT_MASK}, [(32, 4, 2)]),
        ("several_kernel", {"tables": BIAS, **A_FLOAT_MASK}, [(32, 2, 2)]),
        ("several_kernel", {"tables": A_PAIR_OF_TABLES, **A_FLOAT_MASK}, [(16, 1, 2)]),
        ("several_kernel", {"axes": (meta_axis(1, 33),), **A_FLOAT_MASK}, [(16, 2, 1)]),
        ("rows_kernel", {"axes": (meta_axis(1, 33),)}, [(16, 2, 1)]),
        ("tables_kernel", {"tables": KEYS, "axes": (meta_axis(1, 33),)}, [(16, 2, 1)]),
        ("queries_kernel", {"axes": (meta_axis(1, 33),)}, [(16, 2, 1)]),
        ("queries_kernel", {"axes": (meta_axis(1, 33)._replace(relative_values=None),)}, [(32, 4, 2)]),
        ("keys_kernel", {"axes": (meta_axis(1, 33),)}, [(32, 4, 2)]),
        ("queries_kernel", {"axes": (meta_axis(1, 33),), "width": 128}, [(16, 2, 1)]),
        ("tables_kernel", {"tables": A_PAIR_OF_TABLES, "width": 256}, [(16, 2, 2)]),
        ("queries_kernel", {"width": 128}, [(32, 4, 2), (64, 4, 2)]),
    ],
)
def test_what_is_timed(kernel: str, changes: dict[str, Any], expected: list[Any], machine: SimpleNamespace) -> None:
    """Two, the first of which holds on every chip: see measure/results/triton. Of an H100 see test_hopper.py."""
    assert tile_configs.tile_configs(kernel, meta_call(**changes), 89) == [TileConfig(*each) for each in expected]


SEVERAL = {"forward_kernel": [(64, 4, 2), (32, 8, 2, 8)], "queries_kernel": [(32, 4, 2), (32, 4, 2, 4)]}


@pytest.mark.parametrize("kernel", SEVERAL)
@pytest.mark.parametrize(
    ("changes", "arch", "are_timed"),
    [
        ({"tables": KEYS}, 80, True),
        ({"tables": KEYS, "dtype": HALF, "width": 40}, 80, True),
        ({"tables": KEYS}, 86, False),
        ({"tables": KEYS}, 90, False),
        ({}, 80, False),
        ({"tables": KEYS, "dtype": torch.float32}, 80, False),
        ({"tables": KEYS, "width": 72}, 80, False),
        ({"tables": KEYS, "width": 32}, 80, False),
        ({"tables": KEYS, "dropout_p": 0.1}, 80, False),
        ({"tables": ("relative_keys", "relative_queries")}, 80, False),
        ({"tables": KEYS, "axes": (meta_axis(1, 33),)}, 80, False),
        ({"tables": KEYS, "relative_query": torch.empty(4, 16, 4096, 72, device="meta")}, 80, False),
        ({"tables": BIAS}, 80, True),
        ({"tables": (*KEYS, *BIAS)}, 80, True),
    ],
    ids=str,
)
def test_where_programs_own_several_tiles_of_queries(
    kernel: str, changes: dict[str, Any], arch: int, are_timed: bool, machine: SimpleNamespace
) -> None:
    found = tile_configs.tile_configs(kernel, meta_call(**changes), arch)
    assert (found[-1].groups > 1) == are_timed
    if are_timed and changes["tables"] == KEYS:
        assert found == [TileConfig(*each) for each in SEVERAL[kernel]]


def test_a_program_owns_several_tiles(clock: Clock, machine: SimpleNamespace) -> None:
    """The kernel gets their number, and there are fewer programs: in a search, and when it is launched again."""
    launched: list[tuple[int, dict[str, Any]]] = []

    class Grouped(Kernel):
        __name__ = "queries_kernel"

        def running(self, grid: tuple[int]) -> Callable[..., Compiled]:
            def run(*arguments: object, GROUPS: int, **given: Any) -> Compiled:
                launched.append((grid[0], {"GROUPS": GROUPS, "TILE": given["TILE"]}))
                self.runs.append(TileConfig(given["TILE"], given["num_warps"], given["num_stages"], GROUPS))
                return Again(self, self.runs[-1])

            return run

    class Again(Compiled):
        def run(self, *given: Any) -> None:
            launched.append((given[0], {"GROUPS": given[-1], "TILE": given[-2]}))
            self.stand_in.runs.append(self.chosen)

    several, machine.arch = TileConfig(*SEVERAL["queries_kernel"][-1]), 80
    clock.kernel = Grouped({several: 1.0})
    call = meta_call(KEYS)
    for _ in range(2):
        assert clock.kernel.launched(call, 16) == several
        assert launched[-1] == (4096 // 128, {"GROUPS": 4, "TILE": 32})


class Counted(Kernel):
    """Notes how it is run, in any grid."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.__name__ = name

    def running(self, grid: tuple[int]) -> Callable[..., None]:
        def run(*arguments: object, num_warps: int, num_stages: int, **constants: Any) -> None:
            self.runs.append(TileConfig(constants["TILE"], num_warps, num_stages, constants.get("GROUPS", 1)))

        return run


@pytest.fixture
def forgetful(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU that has nothing on disk, ever."""
    monkeypatch.setattr(autotune, "_read", lambda cache, name: None)
    return machine


def compilations(call: Any, ordered: bool, clock: Clock, machine: SimpleNamespace) -> dict[str, int]:
    """How many sizes each launch of a first training step runs in, under the kernel's name and the launch's number."""
    from measure.triton_compiled import launches

    counts = {}
    for number, launch in enumerate(launches(call, ordered)):
        machine.forget()
        clock.kernel = Counted(launch.kernel.__name__)
        autotune.launch(clock.kernel, call, lambda owned: 4096 // owned, (), more=launch.more)
        counts[f"{launch.kernel.__name__} {number}"] = len(set(clock.kernel.runs))
    return counts


def with_several() -> dict[str, Any]:
    """Calls with more than one of what has programs of its own: a float mask, tables of the sequence, axes, starts."""
    mask = torch.empty(4, 1, 4096, 4096, dtype=torch.bfloat16, device="meta")
    axes = tuple(meta_axis(number, 33, own=64) for number in (1, 2, 3))
    return {
        "three axes": meta_call(axes=axes),
        "three axes, a mask": meta_call(axes=axes, pair_mask=mask),
        "three axes, tables, a mask": meta_call(TABLES, 8191, axes=axes, pair_mask=mask),
        "tables, a mask, 128 features": meta_call(TABLES, 8191, width=128, pair_mask=mask),
        "tables, a start as a tensor": meta_call(
            TABLES, 8191, offset=torch.empty((), dtype=torch.int64, device="meta")
        ),
    }


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("ordered", [False, True], ids=["added", "in order"])
def test_a_first_training_step_compiles_four_kernels_at_most(
    ordered: bool, arch: int, clock: Clock, forgetful: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every kind in the committed table, and with several axes, masks and starts.

    Where they are deterministic each has one size, and nothing is timed.
    """
    from measure.triton_compiled import workloads

    forgetful.arch = arch
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: ordered)
    calls = {tuple(place): call for *place, call in workloads()} | with_several()
    found = {place: compilations(call, ordered, clock, forgetful) for place, call in calls.items()}
    assert {place: counts for place, counts in found.items() if sum(counts.values()) > 4} == {}
    assert max(sum(counts.values()) for counts in found.values()) == 4
    if ordered:
        assert all(set(counts.values()) == {1} for counts in found.values())
        assert clock == []
