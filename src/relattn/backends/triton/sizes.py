"""The size of a kernel's tiles, and the numbers of warps and stages for one: timed once, then remembered.

The kind of a call is its kernel, widths, precision, present arguments with their dtypes, and the number of pairs to a
power of four. The first large call of a kind times two candidates and takes the faster. Later calls take the same: in
this process, and through Triton's cache on disk in later processes, on a GPU of the same name. In small calls, in the
interpreter, and under `torch.use_deterministic_algorithms(True)` nothing is timed: the first candidate that fits is
taken. The same holds while a CUDA graph is captured, unless the fastest is known.

Sizes fix the order of sums, and so a gradient's last bits. They stay from run to run as long as that cache exists. On
another machine, after the cache was emptied, or among processes that search at once, other sizes may be the fastest.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.compiler.compiler import make_backend
from triton.runtime.cache import get_cache_manager, triton_key
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources, PTXASError

from relattn.backends.triton.bands import INTERPRETED
from relattn.backends.triton.call import Call
from relattn.backends.triton.inputs import has_wide_tables, widest_of, widths_of
from relattn.backends.triton.ready import keep, remembered, specialization
from relattn.score.problem import TABLES


class Sizes(NamedTuple):
    """How many keys, queries or offsets a tile has on each side; warps; stages; and how many tiles of queries a program
    owns that walks over keys. Of several each has a warp of its own.
    """

    tile: int
    warps: int
    stages: int
    groups: int = 1


SMALLEST = Sizes(16, 4, 1)
"""Where no candidate fits."""
REGISTERS = 255
"""What a thread may have at most. ptxas is told so, for on some chips it would else stop at 32 and spill the rest."""
WORTH_TIMING = 2**20
"""The pairs per head from which on a call is large, and its time worth a search."""
AMPERE = 80
"""The compute capability of A100 and A30, where reading both factors of a product through L1 takes longer than the
product. There programs with several tiles of queries are timed. GeForce GPUs have slower tensor cores and less shared
memory. Hopper's tensor cores read shared memory themselves, but not for products with three axes.
"""
ALONG_KEYS = ("forward_kernel", "queries_kernel")
"""The kernels whose programs own tiles of queries, and walk over the keys."""
ENOUGH = 20.0
"""The milliseconds of runs for the timing of a size."""
TOO_LARGE = (OutOfResources, PTXASError)

_fastest: dict[tuple, Sizes] = {}
_first: dict[tuple, Sizes] = {}


def launch(
    kernel: Any, call: Call, programs: Callable[[int], int], arguments: tuple, added: Sequence[Tensor] = (),
    more: Mapping[str, int] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Run the kernel with the best known sizes of tiles, and time some first where that is allowed. programs: their
    number, if each owns so many queries, keys or offsets. more: constants that the kernel has beside the widths of the
    call.

    While sizes are timed the kernel runs several times, so it must not read its own outputs. added: those that it adds
    to; they are zero before, and made zero again after the timing.

    Raises OutOfResources: when the smallest tiles do not fit on the device.
    """
    widths, device = {**widths_of(call), **more}, call.query.device
    (batch, heads, queries, _), keys = call.query.shape, call.key.shape[2]
    is_large = _is_worth_timing(queries * keys)
    magnitude = (batch * heads * queries * keys).bit_length() // 2  # to a power of four
    known = (
        kernel.__name__, device, *widths.values(), call.precision, magnitude, is_large, specialization(arguments)
    )  # fmt: skip
    if (again := remembered.get(known)) is not None:
        again.launch(programs(again.owned), arguments)
        return
    kind = *widths.values(), call.precision, magnitude, _kinds(arguments)
    key = kernel, device, kind

    def run(sizes: Sizes) -> Any:
        return kernel[(programs(sizes.tile * sizes.groups),)](
            *arguments, **widths, **constants(kernel, sizes), num_warps=sizes.warps, num_stages=sizes.stages,
            maxnreg=REGISTERS, default_dot_input_precision=call.precision,
        )  # fmt: skip

    arch = 0 if INTERPRETED else _target().arch
    several, fastest = candidates(kernel.__name__, call, arch), None
    is_timed = is_large and len(several) > 1
    if is_timed:
        fastest = _fastest.get(key) or _find_the_fastest(kernel, call, kind, several, run, added)
    sizes = fastest or _first.get(key)
    if sizes is None:
        sizes, launched = _run_the_first_that_fits(run, list(dict.fromkeys([*several, SMALLEST])))
    else:
        launched = run(sizes)
    (_first if fastest is None else _fastest)[key] = sizes
    if fastest is not None or not is_timed:  # else a graph is captured, and a later call is timed
        keep(known, launched, (*widths.values(), *constants(kernel, sizes).values()), sizes.tile * sizes.groups)


def constants(kernel: Any, sizes: Sizes) -> dict[str, int]:
    """What the kernel is compiled for, of its sizes."""
    of_groups = {"GROUPS": sizes.groups} if kernel.__name__ in ALONG_KEYS else {}
    return {"TILE": sizes.tile, **of_groups}


def candidates(kernel: str, call: Call, arch: int) -> list[Sizes]:
    """Two sizes, or one, for a GPU of compute capability arch / 10. The first is taken where nothing is timed."""
    first, *second = _on_every_chip(kernel, call)
    if second and arch == AMPERE and kernel in ALONG_KEYS and _has_room_for_groups(kernel, call):
        warps = 8 if kernel == "forward_kernel" else 4
        second = [Sizes(32, warps, 2, groups=warps)]
    return [first, *second]


def untimed(kernel: str, call: Call) -> Sizes:
    """The size that is taken where nothing is timed. It fits on every chip, and spills 256 bytes at most."""
    return _on_every_chip(kernel, call)[0]


def _has_room_for_groups(kernel: str, call: Call) -> bool:
    """Whether programs that own several tiles of queries take all terms of the call, and need less of L1 for it."""
    has_tables = any(getattr(call, name) is not None for name in ("relative_keys", "relative_values", "bias"))
    others = call.relative_queries is not None or call.axes or call.dropout_p > 0.0
    # The numbers of a bias go by shuffles to the threads that add them: too many without a backward pass' products.
    reads_bias = kernel == "forward_kernel" and call.bias is not None
    fits = all(32 < width <= 64 for width in widths_of(call).values()) and call.query.dtype != torch.float32
    return has_tables and not others and not reads_bias and fits


def _on_every_chip(kernel: str, call: Call) -> list[Sizes]:
    return [Sizes(*sizes) for sizes in _sizes(kernel, call)]


def _sizes(kernel: str, call: Call) -> list[tuple[int, int, int]]:
    """Chosen from the table in benchmarks/results/triton, of registers, spills and shared memory on each generation."""
    if INTERPRETED:
        return [SMALLEST[:3]]
    is_backward, is_float32 = kernel != "forward_kernel", call.query.dtype == torch.float32
    vectors = _vectors(call)
    tables = vectors + (call.bias is not None)
    beside = tables + (call.dropout_p > 0.0)  # which takes registers, too
    doublings = _doublings(call)
    if call.axes:
        return [SMALLEST[:3] if is_float32 or doublings else _of_lists(kernel, call)]
    if call.precision == "tf32x3":
        # Two warps would compute some products twice, and one would spill where a program owns the keys.
        return [(16, 2 if kernel == "keys_kernel" else 1, 2), (32, 4, 2)]
    if doublings == 2 or is_float32:
        is_full = beside > 0 or kernel == "keys_kernel"
        first = (16, 4 if is_float32 else 2, 2) if is_full else (32, 4, 2)
        if is_float32 and kernel == "keys_kernel" and vectors:  # a second stage would spill 550 bytes
            first = (16, 4, 1)
    elif beside + doublings <= (0 if is_backward else 1):
        return [(64, 4, 2), (64, 4, 3) if tables else (128, 8, 2)]
    elif is_backward and vectors and doublings:
        first = (32, 8, 1)
    elif call.dropout_p > 0.0 and kernel == "mask_kernel" and vectors:
        first = (16, 1, 2)
    elif call.dropout_p > 0.0 and kernel == "queries_kernel" and vectors > 1:
        first = (16, 2, 2)
    else:
        # Two warps where every product is as wide as a tile: four would compute some of it twice.
        of_pairs = kernel == "mask_kernel" or (kernel == "tables_kernel" and not vectors)
        first = (32, 2 if of_pairs else 4, 2)
    if has_wide_tables(call):  # the kernels are four there, and larger tiles spill thousands of bytes
        return [first]
    return [first, (2 * first[0], 4, 2)]


def tiles_of_a_program(kernel: Any, call: Call, extent: int) -> int:
    """How many tiles of keys, or blocks of offsets, a program owns, of `extent` in all: 2 need fewer products.

    1 where there is no more than a tile, and where the sums of two leave no registers.
    """
    beside = _doublings(call) + max(_vectors(call) - 1, 0) + (call.dropout_p > 0.0)
    has_room = beside <= 1 and call.query.dtype != torch.float32 and not call.axes
    return 2 if has_room and extent > untimed(kernel.__name__, call).tile else 1


def _vectors(call: Call) -> int:
    """The number of tables of vectors."""
    return sum(table is not None for table in (call.relative_keys, call.relative_queries, call.relative_values))


def _doublings(call: Call) -> int:
    """Of a width of 64, up to that of the call."""
    return max((widest_of(call) - 1).bit_length() - 6, 0)


def _of_lists(kernel: str, call: Call) -> tuple[int, int, int]:
    """With listed positions a tile has a block of rows and the sums by row beside the rest: larger tiles spill. More
    warps would compute products twice.
    """
    has_vectors = any(getattr(axis, name) is not None for axis in call.axes for name in TABLES[:3])
    if kernel == "axis_kernel" or (kernel == "rows_kernel" and not has_vectors):
        return (16, 1, 1)
    return (16, 2, 1) if kernel == "rows_kernel" else (32, 4, 2)


def _is_worth_timing(pairs: int) -> bool:
    """Whether a call of so many pairs per head is timed."""
    return pairs >= WORTH_TIMING and not INTERPRETED and not torch.are_deterministic_algorithms_enabled()


def _target() -> Any:
    """The generation of GPUs that Triton compiles for."""
    return driver.active.get_current_target()


def _find_the_fastest(
    kernel: Any, call: Call, kind: tuple, several: list[Sizes], run: Callable[[Sizes], Any], added: Sequence[Tensor]
) -> Sizes | None:
    """The sizes from Triton's cache on disk, or timed and stored there; None if unknown while a graph is captured."""
    target = make_backend(_target()).hash()
    gpu = torch.cuda.get_device_name(call.query.device)
    told = triton_key(), target, gpu, kernel.cache_key, kind, several
    cache = get_cache_manager(hashlib.sha256(repr(told).encode()).hexdigest())
    name = f"{kernel.__name__}.sizes.json"
    if (known := _read(cache, name)) is not None:
        return known
    if torch.cuda.is_current_stream_capturing():
        return None
    times = {sizes: _milliseconds(run, sizes) for sizes in several}
    fastest = min(several, key=times.__getitem__)
    if times[fastest] == math.inf:
        run(fastest := SMALLEST)
    for sums in added:
        sums.zero_()
    if (others := _read(cache, name)) is not None:  # another process was first
        return others
    cache.put(json.dumps(fastest), name, binary=False)
    return fastest


def _read(cache: Any, name: str) -> Sizes | None:
    path = cache.get_file(name)
    if path is None:
        return None
    return Sizes(*json.loads(Path(path).read_text()))


def _milliseconds(run: Callable[[Sizes], Any], sizes: Sizes) -> float:
    """The time of a run; infinite where the sizes do not fit."""
    try:
        return _timed(lambda: run(sizes))
    except TOO_LARGE:
        return math.inf


def _timed(run: Callable[[], None]) -> float:
    """The median of some runs, for ENOUGH milliseconds, after a first run, which may compile.

    Unlike Triton's `do_bench` it reserves no memory, waits only for the runs, and one long run is enough.
    """
    run()
    times = []
    while sum(times) < ENOUGH:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def _run_the_first_that_fits(run: Callable[[Sizes], Any], several: list[Sizes]) -> tuple[Sizes, Any]:
    """The sizes, and what the run returned."""
    for sizes in several[:-1]:
        try:
            return sizes, run(sizes)
        except TOO_LARGE:
            continue
    return several[-1], run(several[-1])


def _kinds(arguments: tuple) -> tuple:
    """The kind of a compiled kernel: which arguments are present, and their dtypes."""
    return tuple(
        _kinds(argument) if isinstance(argument, tuple) else getattr(argument, "dtype", argument is not None)
        for argument in arguments
    )
