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
from typing import Any

import torch
from torch import Tensor
from triton.compiler.compiler import make_backend
from triton.runtime.cache import get_cache_manager, triton_key
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources, PTXASError

from relattn.backends.triton.device.bands import INTERPRETED
from relattn.backends.triton.host.call import Call
from relattn.backends.triton.host.pack import widths_of
from relattn.backends.triton.host.ready import keep, recall
from relattn.backends.triton.host.replay import note
from relattn.backends.triton.host.tile_configs import SMALLEST, TileConfig, constants, has_few_rows, tile_configs

REGISTERS = 255
"""What a thread may have at most. ptxas is told so, for on some chips it would else stop at 32 and spill the rest."""
WORTH_TIMING = 2**20
"""The pairs per head from which on a call is large, and its time worth a search."""
ENOUGH = 20.0
"""The milliseconds of runs for the timing of a size."""
TOO_LARGE = (OutOfResources, PTXASError)

_fastest: dict[tuple, TileConfig] = {}
_first: dict[tuple, TileConfig] = {}


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
    query, relative = call.query, call.relative_query
    (batch, heads, queries, width), keys = query.shape, call.key.shape[2]
    is_large = queries * keys >= WORTH_TIMING and _may_be_timed()
    magnitude = (batch * heads * queries * keys).bit_length() // 2  # to a power of four
    known_by = (
        kernel.__name__, query.get_device(), width, call.value.shape[3],
        None if relative is None else relative.shape[3], *more.values(), call.precision, magnitude, is_large,
        has_few_rows(call),
    )  # fmt: skip
    if (again := recall(known_by, arguments)) is not None:
        note(again, count := programs(again.owned), arguments)
        again.launch(count, arguments)
        return
    widths = {**widths_of(call), **more}
    kind = *widths.values(), call.precision, magnitude, _kinds(arguments)

    def run(config: TileConfig) -> Any:
        return kernel[(programs(config.tile * config.groups),)](
            *arguments, **widths, **constants(kernel, config), num_warps=config.warps, num_stages=config.stages,
            maxnreg=REGISTERS, default_dot_input_precision=call.precision,
        )  # fmt: skip

    configs, fastest = tile_configs(kernel.__name__, call, architecture()), None
    key = kernel, query.device, kind, *configs
    is_timed = is_large and len(configs) > 1
    if is_timed:
        fastest = _fastest.get(key) or _find_the_fastest(kernel, call, kind, configs, run, added)
    config = fastest or _first.get(key)
    if config is None:
        config, launched = _run_the_first_that_fits(run, list(dict.fromkeys([*configs, SMALLEST])))
    else:
        launched = run(config)
    (_first if fastest is None else _fastest)[key] = config
    kept, owned = None, config.tile * config.groups
    if fastest is not None or not is_timed:  # else a graph is captured, and a later call is timed
        compiled_in = *widths.values(), *constants(kernel, config).values()
        kept = keep(known_by, arguments, launched, compiled_in, owned)
    note(kept, programs(owned), arguments)


def _may_be_timed() -> bool:
    """Whether the fastest size is searched for at all."""
    return not INTERPRETED and not torch.are_deterministic_algorithms_enabled()


def architecture() -> int:
    """The generation of GPUs that Triton compiles for: ten times the compute capability; 0 for its interpreter."""
    return 0 if INTERPRETED else _target().arch


def architecture_of(call: Call) -> int:
    """That of the GPU where the call's tensors are; 0 where they are on none."""
    return architecture() if call.query.is_cuda else 0


def _target() -> Any:
    return driver.active.get_current_target()


def _find_the_fastest(
    kernel: Any,
    call: Call,
    kind: tuple,
    configs: list[TileConfig],
    run: Callable[[TileConfig], Any],
    added: Sequence[Tensor],
) -> TileConfig | None:
    """The sizes from Triton's cache on disk, or timed and stored there; None if unknown while a graph is captured."""
    target = make_backend(_target()).hash()
    gpu = torch.cuda.get_device_name(call.query.device)
    key = triton_key(), target, gpu, kernel.cache_key, kind, configs
    cache = get_cache_manager(hashlib.sha256(repr(key).encode()).hexdigest())
    name = f"{kernel.__name__}.sizes.json"
    if (stored := _read(cache, name)) is not None:
        return stored
    if torch.cuda.is_current_stream_capturing():
        return None
    times = {config: _milliseconds(run, config) for config in configs}
    fastest = min(configs, key=times.__getitem__)
    if times[fastest] == math.inf:
        run(fastest := SMALLEST)
    for sums in added:
        sums.zero_()
    if (others := _read(cache, name)) is not None:  # another process was first
        return others
    cache.put(json.dumps(fastest), name, binary=False)
    return fastest


def _read(cache: Any, name: str) -> TileConfig | None:
    path = cache.get_file(name)
    if path is None:
        return None
    return TileConfig(*json.loads(Path(path).read_text()))


def _milliseconds(run: Callable[[TileConfig], Any], config: TileConfig) -> float:
    """The time of a run; infinite where the sizes do not fit."""
    try:
        return _timed(lambda: run(config))
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


def _run_the_first_that_fits(run: Callable[[TileConfig], Any], configs: list[TileConfig]) -> tuple[TileConfig, Any]:
    """The sizes, and what the run returned."""
    for config in configs[:-1]:
        try:
            return config, run(config)
        except TOO_LARGE:
            continue
    return configs[-1], run(configs[-1])


def _kinds(arguments: tuple) -> tuple:
    """The kind of a compiled kernel: which arguments are present, and their dtypes."""
    return tuple(
        _kinds(argument) if isinstance(argument, tuple) else getattr(argument, "dtype", argument is not None)
        for argument in arguments
    )
