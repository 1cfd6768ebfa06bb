"""Padding never matters to the kernels either, across tiles and where few queries have kernels of their own."""

import numpy as np
import pytest

from tests.contract.cases import CASES
from tests.contract.padding import (
    POISON,
    WAYS,
    assert_gradients_of_dead_rows_do_not_matter,
    assert_padding_does_not_matter,
)
from tests.triton import everywhere

pytest_plugins = ["tests.contract.fresh"]


FEW = (
    "key_mask", "segments", "causality", "together", "attn_mask, float", "causality, starts as tensors",
    "together, explicit",
)  # fmt: skip
"""Ways in which few queries are tested, too: each kind of mask and position."""


@pytest.mark.parametrize(("way", "few"), [(way, 0) for way in WAYS] + [(way, 8) for way in FEW])
@everywhere
def test_every_way(way: str, few: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles, however few queries there are, or by the kernel for up to so many."""
    from relattn.backends.triton.kernels import forward

    monkeypatch.setattr(forward, "MAX_QUERIES", few)
    assert_padding_does_not_matter(CASES["terms_all"], way, "triton", ["nan"], 0, device)


@everywhere
@pytest.mark.parametrize(
    "name", ["relative_per_head", "shaw_asymmetric", "txl", "alibi_4_heads", "rope+shaw", "key_query+shaw"]
)
def test_encodings(name: str, device: str, rng: np.random.Generator) -> None:
    way, poison = str(rng.choice(list(WAYS))), str(rng.choice(list(POISON)))
    assert_padding_does_not_matter(CASES[name], way, "triton", [poison], int(rng.integers(2**32)), device)


@everywhere
@pytest.mark.parametrize("way", ["segments", "causality", "attn_mask"])
def test_gradients_that_come_in_at_dead_rows(way: str, device: str) -> None:
    assert_gradients_of_dead_rows_do_not_matter(CASES["terms_all"], way, "triton", device)
