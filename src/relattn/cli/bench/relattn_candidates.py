"""The candidates: PyTorch's attention without an encoding, which is the floor, and every backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import relattn
from relattn.backends.select import BACKENDS, Explanation
from relattn.call import Options, checked, request
from relattn.cli.bench.case import Call, Case, make_case
from relattn.cli.bench.workload import Workload
from relattn.nn.kept_rows import KeptRows
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.places import Places
from relattn.positions.positions import SEQUENCE, Positions, limits

FLOOR = "sdpa, no encoding"
BACKEND_OF = {f"relattn {name}": name for name in BACKENDS}
"""Candidates that are a backend, and the backend."""
TRIED_LENGTH = 8


@dataclass(frozen=True)
class Candidate:
    """One way to attend.

    prepare: makes a call from a case. The call starts from the case's tensors and the encoding's parameters. Things
        that depend only on shapes (causal masks, bucket numbers, compiled code) are made in `prepare`, and not timed.
    reason: why it is not defined for a workload; None where it is.
    encodes: False for the floor, which gets the workload without its encoding.
    """

    prepare: Callable[[Case], Call]
    reason: Callable[[Workload], str | None]
    encodes: bool = True

    def case(self, workload: Workload) -> Case:
        """The tensors that it gets for a workload."""
        return make_case(self.given(workload))

    def given(self, workload: Workload) -> Workload:
        """The workload that it gets where `workload` is measured."""
        return workload if self.encodes else workload.without_encoding


def relattn_call(case: Case, backend: str) -> Call:
    """O by a backend."""
    by_cache = case.workload.decoding
    return _decoding(case, backend) if by_cache else partial(relattn.relative_attention, **arguments(case, backend))


def arguments(case: Case, backend: str) -> dict[str, object]:
    """The arguments of the case for `relative_attention`, and for `explain`."""
    start = case.key.shape[2] - case.query.shape[2]
    return {
        "query": case.query,
        "key": case.key,
        "value": case.value,
        "is_causal": case.workload.causal,
        "encoding": case.encoding,
        "query_position": {SEQUENCE: start, **case.places},
        "key_position": case.places,
        "window": case.workload.sides,
        "backend": backend,
    }


def chosen_by_auto(workload: Workload) -> str:
    """The backend that "auto" takes for a workload."""
    return _explanation("auto", workload).chosen


def _decoding(case: Case, backend: str) -> Call:
    """As RelativeMultiheadAttention with a cache: keys are prepared, and rows that depend on parameters are kept."""
    last, sides = case.workload.length - 1, case.workload.sides
    starts, memo = (ContiguousPositions(last), ContiguousPositions(0)), KeptRows()

    def call() -> Tensor:
        positions = Positions(*starts, 1, last + 1, case.query.device, *limits(True, sides), memo)
        tensors = checked(case.query, case.key, case.value, enable_gqa=True)
        options = Options(backend=backend)
        return request(*tensors, Places(positions), case.encoding, options, keys_are_prepared=True).run()[0]

    return call


def _floor(case: Case) -> Call:
    causal = case.workload.causal and not case.workload.decoding  # one query sees every key
    attend = partial(F.scaled_dot_product_attention, case.query, case.key, case.value, is_causal=causal)

    def flash() -> Tensor:
        # On a GPU PyTorch chooses between several kernels, by machine and version: this is the kernel that papers name.
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return attend()

    return flash if case.workload.device == "cuda" and case.workload.dtype in ("bfloat16", "float16") else attend


def _explanation(backend: str, workload: Workload) -> Explanation:
    with torch.set_grad_enabled(workload.training):  # as `step` runs it: "auto" depends on whether a gradient is wanted
        return relattn.explain(**arguments(make_case(workload), backend))  # pyright: ignore[reportArgumentType]


def _refused_by(backend: str, workload: Workload) -> str | None:
    try:
        _explanation(backend, workload.at(TRIED_LENGTH))
    except relattn.UnsupportedError as error:
        return "; ".join(error.reasons[backend])
    return None


CANDIDATES = {FLOOR: Candidate(_floor, lambda workload: None, encodes=False)} | {
    candidate: Candidate(partial(relattn_call, backend=name), partial(_refused_by, name))
    for candidate, name in BACKEND_OF.items()
}
"""By name, in the order of the tables."""
