"""The comparison of the whole suite, for a call with gradients and for the same call without, on other kernels."""

from collections.abc import Callable

import torch

from tests.contract.check import Truth, by_oracle, compare, expect
from tests.contract.subject import Subject


def check(
    subject: Subject,
    backend: str,
    dtype: str,
    *,
    return_lse: bool = True,
    truth: Callable[[Subject], Truth] = by_oracle,
) -> None:
    """As `tests.contract.check.check`; without gradients too, where few queries read the keys as they lie."""
    expected = expect(subject, dtype, return_lse=return_lse, truth=truth)
    compare(subject, backend, dtype, expected)
    answers = {name: one for name, one in expected.wanted.items() if name in ("output", "lse")}
    with torch.no_grad():
        compare(subject, backend, dtype, expected._replace(wanted=answers, cotangents=None))
