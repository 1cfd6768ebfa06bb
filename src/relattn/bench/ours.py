"""relative_attention on a case: a whole sequence, or one token as a layer with a cache decodes it."""

from __future__ import annotations

from functools import partial

from torch import Tensor

import relattn
from relattn.bench.formula import Call
from relattn.bench.workload import Case
from relattn.functional import lowered
from relattn.nn.kept_rows import KeptRows
from relattn.score.positions import Positions


def ours(case: Case, backend: str) -> Call:
    """O by a backend of ours."""
    if case.workload.decoding:
        return _decoding(case, backend)
    return partial(relattn.relative_attention, **arguments(case, backend))


def arguments(case: Case, backend: str) -> dict[str, object]:
    """What the case asks of `relative_attention`, and of `explain`."""
    return {
        "query": case.query,
        "key": case.key,
        "value": case.value,
        "is_causal": case.workload.causal,
        "encoding": case.encoding,
        "query_position": case.key.shape[2] - case.query.shape[2],
        "backend": backend,
    }


def _decoding(case: Case, backend: str) -> Call:
    """As RelativeMultiheadAttention does it with a cache: keys are prepared, rows that parameters decide are kept."""
    asked, last = arguments(case, backend), case.workload.length - 1
    positions = Positions(last, 0, 1, case.workload.length, case.query.device, None, 0, KeptRows())
    encoding = case.encoding

    def call() -> Tensor:
        terms = None if encoding is None else lowered(encoding, case.query, case.key, positions)
        return relattn.relative_attention(**(asked | {"encoding": terms}))  # pyright: ignore[reportCallIssue, reportArgumentType]

    return call
