"""What a mask function allows, found by calling it with numbers that record every operation on them.

While a graph is compiled, the variables that a function closed over are not visible, but the function can be called.
This finds causality, windows on one side or both, and what several functions allow together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from transformers import masking_utils

from relattn.errors import UnsupportedError
from relattn.hf.masks import MaskStructure, both


def probe(mask_function: Callable) -> MaskStructure | None:
    """The structure behind what several functions of transformers allow together; None for any other composition.

    Raises UnsupportedError: for functions that compute something else from a query and a key.
    """
    if mask_function.__module__ != masking_utils.__name__ or not mask_function.__qualname__.startswith("and_masks."):
        return None
    function: Any = mask_function
    return function(None, None, _Place(is_query=True), _Place(is_query=False)).structure


class _Allowed:
    """The recorded answer of a function."""

    device = None

    def __init__(self, structure: MaskStructure | None) -> None:
        self.structure = structure

    def __and__(self, other: _Allowed) -> _Allowed:
        return _Allowed(both(self.structure, other.structure))

    def to(self, _: object) -> _Allowed:
        """Itself: transformers brings masks to one device."""
        return self


class _Place:
    """The place of a query or a key, minus a number."""

    def __init__(self, *, is_query: bool, less: int = 0) -> None:
        self.is_query, self.less = is_query, less

    def new_ones(self, *_: object, **__: object) -> _Allowed:
        """Every pair, where transformers begins."""
        return _Allowed(MaskStructure())

    def __sub__(self, other: _Place | int) -> _Place | _Distance:
        if isinstance(other, int):
            return _Place(is_query=self.is_query, less=self.less + other)
        if self.is_query and not other.is_query and self.less == other.less == 0:
            return _Distance()
        _refuse()

    def __gt__(self, other: _Place) -> _Allowed:
        """key > query - window."""
        self._is_key_before(other)
        return _Allowed(MaskStructure(window=(other.less - 1, None)))

    def __le__(self, other: _Place) -> _Allowed:
        """key <= query."""
        self._is_key_before(other)
        if other.less:
            _refuse()
        return _Allowed(MaskStructure(is_causal=True))

    def __ge__(self, other: int) -> _Allowed:
        """query >= 0."""
        if not isinstance(other, int) or other != 0 or self.less:
            _refuse()
        return _Allowed(MaskStructure())

    def _is_key_before(self, other: _Place) -> None:
        if self.is_query or self.less or not isinstance(other, _Place) or not other.is_query:
            _refuse()


class _Distance:
    """Between a query and a key."""

    def __abs__(self) -> _Distance:
        return self

    def __le__(self, other: int) -> _Allowed:
        return _Allowed(MaskStructure(window=(other, other)))


def _refuse() -> NoReturn:
    raise UnsupportedError(
        "attn_implementation='relattn': a mask function asks for something else than causality and windows, which a "
        "graph cannot be told; compile the model without fullgraph=True"
    )
