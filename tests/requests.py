"""The request of a call, by the names of `relative_attention`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relattn import call


def request_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    encoding: Any = None,
    query_position: Any = 0,
    key_position: Any = 0,
    **options: Any,
) -> call.Request:
    """What `relative_attention` runs for these arguments."""
    return call.request_of(
        query, key, value, is_causal, False, encoding, query_position, key_position, call.Options(**options)
    )
