"""Which backend runs a problem: the named one, or the one that "auto" prefers.

The figures behind the bounds are on the page measure/results/choice.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from relattn.backends.base import Backend
from relattn.backends.blocks import BlocksBackend
from relattn.backends.cpu.backend import NativeBackend
from relattn.backends.cpu.operator import has_few_queries
from relattn.backends.cpu.prepared import is_plain
from relattn.backends.dense import DenseBackend
from relattn.backends.reference import ReferenceBackend
from relattn.backends.sdpa import SdpaBackend
from relattn.backends.triton import TritonBackend
from relattn.backends.triton.host.slow_place import warn_of_a_slow_place
from relattn.checks.values import check_choice
from relattn.equation.problem import Problem
from relattn.errors import UnsupportedError
from relattn.interception import are_plain, is_compiled, is_intercepted
from relattn.positions.certainty import statically_true

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        SdpaBackend(),
        TritonBackend(),
        DenseBackend(),
        NativeBackend(),
        BlocksBackend(),
        ReferenceBackend(),
    )
}
"""Every backend by name, in the order in which "auto" prefers them for small problems."""

NATIVE_FIRST = ("sdpa", "triton", "native", "dense", "blocks", "reference")
"""The order for small problems where a call of native costs less than one of dense."""

MANY_PAIRS_FIRST = ("sdpa", "triton", "native", "blocks", "dense", "reference")
"""The order for other problems: dense runs what blocks cannot run."""

PLAIN_PAIRS = 2**21
PLAIN_PAIRS_IF_CAUSAL = 2**19
PLAIN_PAIRS_IF_FEW_QUERIES = 2**11
PLAIN_PAIRS_IF_DROPPED = 2**15
"""From this many pairs on native takes less time than PyTorch's: full, causal, few queries in bfloat16, dropout."""

FEW_PAIRS = 2**22
FEW_PAIRS_PER_ELEMENT = 2**18
FEW_QUERIES = 32
"""Below any of these numbers dense was faster than the tiles that stood where blocks stand now, with an unclipped
table, D = 64, float32 on 2 cores.
"""

PAIRS_FOR_A_STEP = 2**17
"""From here on a training step of native takes less time than one of dense in most of the figures, and in none of them
more than 1.13 of it. Below, the work around the kernels is larger, but for calls whose passes are prepared.
"""

PAIRS_IN_A_GRAPH = 2**15
"""From this many pairs on, and where lengths are open, torch.compile gets native where an eager call does.

Below, one operator costs more than the compiled operations of dense.
"""

PAIRS_IF_EXPLICIT = 2**17
"""Where positions are explicit and no gradient is asked, native takes less time than dense from here on.

Below, the search for rows that see no key costs more. The kernel for few queries does not need this search, and takes
less time at any length.
"""

HAS_TILES = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
"""Whether the processor multiplies tiles of bfloat16 (AMX), which PyTorch's attention uses and native does not."""

KEYS_PER_QUERY = 8
"""With more keys per query than this, copying all keys for native's products costs more than it saves.

With queries so few that native reads the keys where they lie, nothing is copied.
"""


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`: the backend that runs the problem, and for each of the others why it does not.

    chosen: a backend's name. others: name -> the reasons, a sentence each.
    """

    chosen: str
    others: dict[str, list[str]]

    def __str__(self) -> str:
        lines = [f"{self.chosen}: runs it"]
        return "\n".join(lines + [f"{name}: {'; '.join(reasons)}" for name, reasons in self.others.items()])


def select(name: str, problem: Problem) -> Backend:
    """The backend called `name`; for "auto", the preferred one among those that can run the problem.

    name: a name that `check_backend` accepts.

    Raises UnsupportedError: with its reasons, for a backend that cannot run the problem.
    """
    if name == "auto":
        chosen = _first_that_runs(problem)
        if problem.query.device.type == "cuda" and chosen.name not in ("sdpa", "triton"):
            warn_of_a_slow_place(chosen.name, problem)
        return chosen
    reasons = list(BACKENDS[name].reasons(problem))
    if reasons:
        usable = [other for other, backend in BACKENDS.items() if not any(backend.reasons(problem))]
        raise UnsupportedError(
            f"backend={name!r} cannot run this: {'; '.join(reasons)}; use {' or '.join(map(repr, usable))}",
            {name: reasons},
        )
    return BACKENDS[name]


def explain_choice(name: str, problem: Problem) -> Explanation:
    """Which backend `name` (a backend, or "auto") takes, and for each of the others why not."""
    chosen = (_first_that_runs(problem) if name == "auto" else select(name, problem)).name  # select may warn
    preferred = _by_preference(problem)
    others = {}
    for other, backend in BACKENDS.items():
        if other == chosen:
            continue
        if name != "auto":
            passed_over = f"usable, but {chosen} was named"
        elif backend in preferred:
            passed_over = f"usable, but {chosen} comes first"
        else:
            passed_over = "usable, but on this device only where it is named"
        others[other] = list(backend.reasons(problem)) or [passed_over]
    return Explanation(chosen, others)


def _by_preference(problem: Problem) -> list[Backend]:
    """The backends that "auto" may take, best first; dense before blocks where the problem is known to be small.

    Without CUDA triton is Triton's interpreter, thousands of times slower than any other, so it runs only by name.
    Lengths that a compiled graph leaves open do not count as small, and get no guard.
    """
    _, heads, queries, _ = problem.query.shape
    small = (
        statically_true(heads * queries * problem.key.shape[2] < FEW_PAIRS_PER_ELEMENT)
        or statically_true(queries < FEW_QUERIES)
        or statically_true(problem.num_pairs() < FEW_PAIRS)
    )
    if not small:
        order = MANY_PAIRS_FIRST
    elif _suits_native(problem):
        order = NATIVE_FIRST
    else:
        order = tuple(BACKENDS)
    if _outruns_sdpa(problem):
        order = ("native", *(name for name in order if name != "native"))
    return [BACKENDS[name] for name in order if name != "triton" or problem.query.device.type == "cuda"]


def _outruns_sdpa(problem: Problem) -> bool:
    """Whether native takes less time than PyTorch's own attention.

    An exporter, a counting mode or a sharded tensor treats PyTorch's attention specially, so it stays. With dropout
    PyTorch's attention makes every weight of every pair.
    """
    if problem.query.device.type != "cpu":
        return False
    if problem.has_tables() or problem.mask.pairs is not None or problem.axisless_terms():
        return False
    tensors = problem.query, problem.key, problem.value
    if not are_plain(tensors) if is_compiled() else is_intercepted(tensors):
        return False
    if problem.dropout_p > 0.0:
        return _may_have(problem, PLAIN_PAIRS_IF_DROPPED)
    if HAS_TILES and problem.key.dtype == torch.bfloat16:
        return False
    if statically_true(has_few_queries(problem)):
        return problem.key.dtype == torch.bfloat16 and _may_have(problem, PLAIN_PAIRS_IF_FEW_QUERIES)
    if not statically_true(problem.query.shape[2] * KEYS_PER_QUERY >= problem.key.shape[2]):
        return False
    return _may_have(problem, PLAIN_PAIRS_IF_CAUSAL if problem.mask.limits_positions() else PLAIN_PAIRS)


def _suits_native(problem: Problem) -> bool:
    """Whether a small problem costs native less than dense, and native can do everything that dense can.

    torch.compile fuses the operations of dense. An exported graph may run where the kernels of native are not.
    """
    if torch.compiler.is_compiling() and (not is_compiled() or not _may_have(problem, PAIRS_IN_A_GRAPH)):
        return False
    long_enough = statically_true(problem.query.shape[2] * KEYS_PER_QUERY >= problem.key.shape[2])
    if not problem.asks_for_gradient():
        explicit = problem.axes[0].positions.origin is None
        few = statically_true(has_few_queries(problem))
        return few or (long_enough and (not explicit or _may_have(problem, PAIRS_IF_EXPLICIT)))
    return long_enough and (_may_have(problem, PAIRS_FOR_A_STEP) or is_plain(problem))


def _may_have(problem: Problem, pairs: int) -> bool:
    """Whether the problem has that many pairs, or lengths that a compiled graph leaves open."""
    return not statically_true(problem.num_pairs() < pairs)


def _first_that_runs(problem: Problem) -> Backend:
    """The backend that "auto" takes. It is a loop, because torch.compile of torch 2.8 cannot trace `next` with a
    generator.
    """
    for backend in _by_preference(problem):
        if not any(backend.reasons(problem)):  # it stops at the first reason
            return backend
    raise AssertionError("the reference backend runs every problem")


def check_backend(name: str) -> None:
    """`name` is "auto" or a backend's."""
    check_choice("backend", name, ("auto", *BACKENDS))
