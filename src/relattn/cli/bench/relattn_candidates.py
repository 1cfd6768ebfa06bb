"""relative_attention on a case: a whole sequence, or one token as a layer with a cache decodes it."""

from __future__ import annotations

from functools import partial

from torch import Tensor

import relattn
from measure.peers.formula import Call
from relattn import door
from relattn.cli.bench.case import Case
from relattn.nn.kept_rows import KeptRows
from relattn.score.places import Places
from relattn.score.position import Run
from relattn.score.positions import SEQUENCE, Positions, limits


def ours(case: Case, backend: str) -> Call:
    """O by a backend of ours."""
    if case.workload.decoding:
        return _decoding(case, backend)
    return partial(relattn.relative_attention, **arguments(case, backend))


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


def _decoding(case: Case, backend: str) -> Call:
    """As RelativeMultiheadAttention with a cache: keys are prepared, and rows that depend on parameters are kept."""
    last, sides = case.workload.length - 1, case.workload.sides
    memo = KeptRows()

    def call() -> Tensor:
        positions = Positions(Run(last), Run(0), 1, last + 1, case.query.device, *limits(True, sides), memo)
        tensors = door.checked(case.query, case.key, case.value, enable_gqa=True)
        output, _ = door.request(
            *tensors, Places({SEQUENCE: positions}), encoding=case.encoding, keys_are_prepared=True, backend=backend
        ).run()
        return output

    return call
