"""The size of a kernel's tiles, and the numbers of warps and stages for one: timed once, then remembered.

The kind of a call is its kernel, widths, present arguments with their dtypes, and the number of pairs to a power of
four. The first large call of a kind times up to four candidates and takes the fastest. Later calls take the same: in
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.compiler.compiler import make_backend
from triton.runtime.cache import get_cache_manager, triton_key
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources, PTXASError

from relattn.backends.triton.bands import INTERPRETED
from relattn.backends.triton.call import Call
from relattn.backends.triton.inputs import beyond, widths_of

Sizes = tuple[int, int, int]  # tile, warps, stages
SMALL: list[Sizes] = [(32, 8, 1), (16, 4, 1)]
"""Where no candidate fits, the first of these that fits."""
WORTH_TIMING = 2**20
"""The pairs per head from which on a call is large, and its time worth a search."""
ENOUGH = 20.0
"""The milliseconds of runs for the timing of a size."""
TOO_LARGE = (OutOfResources, PTXASError)

_fastest: dict[tuple, Sizes] = {}
_first: dict[tuple, Sizes] = {}


def launch(kernel: Any, call: Call, programs: Callable[[int], int], arguments: tuple) -> None:
    """Run the kernel with the best known sizes of tiles, and time some first where that is allowed. programs: the
    number of programs for a tile.

    While sizes are timed the kernel runs several times, so it must not read its own outputs.

    Raises OutOfResources: when the smallest tiles do not fit on the device.
    """
    widths = widths_of(call)
    kind = *widths.values(), _magnitude(call), *_kinds(arguments)
    key = kernel, call.query.device, kind

    def run(sizes: Sizes) -> None:
        tile, warps, stages = sizes
        kernel[(programs(tile),)](*arguments, **widths, TILE=tile, num_warps=warps, num_stages=stages)

    fastest = None
    if _is_worth_timing(call):
        fastest = _fastest.get(key) or _find_the_fastest(kernel, call, kind, run)
    if fastest is not None:
        _fastest[key] = fastest
        run(fastest)
    elif key in _first:
        run(_first[key])
    else:
        _first[key] = _run_the_first_that_fits(run, list(dict.fromkeys([*candidates(call), *SMALL])))


def candidates(call: Call) -> list[Sizes]:
    """At most four sizes, without those that are known to spill registers. The first one is taken where nothing is
    timed.

    This was seen when compiled for sm_90. 64 wide in half precision: 8 warps spill little in tiles of 64, and up to
    3400 bytes in tiles of 128 with any table; 4 warps up to 1300 in tiles of 64 with two tables of vectors, 670 with
    one, clipped. 256 wide, with a table of vectors, tiles of 64 do not fit and two stages spill up to 15000. In float32
    4 warps spill 1600 in tiles of 32.
    """
    if INTERPRETED:
        return [(16, 4, 1)]
    tables = [call.relative_keys, call.relative_queries, call.relative_values]
    vectors = sum(table is not None for table in tables)
    wide = max(*widths_of(call).values()) > 128
    if call.query.dtype == torch.float32 or (wide and vectors):
        return SMALL
    if wide:
        return [(64, 8, 2), *SMALL]
    found = [(64, 8, 2), (64, 8, 3)]
    if vectors <= 1 and not any(beyond(call, table) for table in tables if table is not None):
        found.append((64, 4, 2))
    found.append((128, 8, 2) if vectors == 0 and call.bias is None else (32, 4, 2))
    return found


def _is_worth_timing(call: Call) -> bool:
    large = call.query.shape[2] * call.key.shape[2] >= WORTH_TIMING
    return large and not INTERPRETED and not torch.are_deterministic_algorithms_enabled()


def _find_the_fastest(kernel: Any, call: Call, kind: tuple, run: Callable[[Sizes], None]) -> Sizes | None:
    """The sizes from Triton's cache on disk, or timed and stored there; None if unknown while a graph is captured."""
    several = candidates(call)
    target = make_backend(driver.active.get_current_target()).hash()  # pyright: ignore[reportArgumentType]
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
        fastest = _run_the_first_that_fits(run, SMALL)
    if (others := _read(cache, name)) is not None:  # another process was first
        return others
    cache.put(json.dumps(fastest), name, binary=False)
    return fastest


def _read(cache: Any, name: str) -> Sizes | None:
    path = cache.get_file(name)
    if path is None:
        return None
    tile, warps, stages = json.loads(Path(path).read_text())
    return tile, warps, stages


def _magnitude(call: Call) -> int:
    """The pairs of a call, over all heads, as a power of four: other lengths may have another fastest size."""
    return (call.query.shape[:3].numel() * call.key.shape[2]).bit_length() // 2


def _milliseconds(run: Callable[[Sizes], None], sizes: Sizes) -> float:
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


def _run_the_first_that_fits(run: Callable[[Sizes], None], several: list[Sizes]) -> Sizes:
    for sizes in several[:-1]:
        try:
            run(sizes)
        except TOO_LARGE:
            continue
        return sizes
    run(several[-1])
    return several[-1]


def _kinds(arguments: tuple) -> Iterator[Any]:
    """The kind of a compiled kernel: which arguments are present, and their dtypes."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _kinds(argument)
        else:
            yield argument.dtype if isinstance(argument, Tensor) else argument is None
