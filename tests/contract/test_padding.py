"""Padding never matters: NaN, infinities and far numbers in keys that no query sees, and in queries that see no key."""

import numpy as np
import pytest
import torch

from relattn.backends.dense import products
from tests.contract.cases import BACKEND_ANSWERS, CASES, runnable_pairs
from tests.contract.padding import (
    POISON,
    WAYS,
    assert_gradients_of_dead_rows_do_not_matter,
    assert_padding_does_not_matter,
    padded_setting,
    padded_subject,
    padding_of,
)

pytestmark = pytest.mark.one_in(6)

pytest_plugins = ["tests.contract.fresh"]

SEEING = ("key_mask",)
"""Those in which every query sees some key."""
UNIVERSAL = [(name, backend) for name, backend in runnable_pairs() if backend not in BACKEND_ANSWERS]
BACKENDS = list(dict.fromkeys(backend for _, backend in UNIVERSAL))


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "backend"), UNIVERSAL, indirect=["backend"])
def test_every_encoding(name: str, backend: str, rng: np.random.Generator) -> None:
    """In two of the ways, each with one poison; the tests below have all of them."""
    for way in rng.choice(list(WAYS), size=2, replace=False):
        poison = str(rng.choice(list(POISON)))
        assert_padding_does_not_matter(CASES[name], way, backend, [poison], int(rng.integers(2**32)))


@pytest.mark.pairs
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["none", "terms_all"])
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_every_way(way: str, name: str, backend: str) -> None:
    assert_padding_does_not_matter(CASES[name], way, backend, POISON, 0)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in SEEING])
@pytest.mark.parametrize("name", ["none", "terms_all"])
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_gradients_that_come_in_at_dead_rows(way: str, name: str, backend: str) -> None:
    assert_gradients_of_dead_rows_do_not_matter(CASES[name], way, backend)


@pytest.mark.parametrize("way", WAYS)
def test_the_ways_hide_keys_from_all_queries(way: str) -> None:
    """Most hide every key from some query, too; else the tests above would say less than they seem to."""
    keys, queries = padding_of(padded_setting(CASES["none"], way, 0))
    assert keys.any()
    assert queries.any() == (way not in SEEING)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("at_once", [1, 2**22], ids=["a head at a time", "whole"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["dense", "blocks"])
def test_without_gradients(way: str, backend: str, at_once: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding: few queries, where dense widens and cleans the values a few heads at a time."""
    monkeypatch.setattr(products, "WIDENED", at_once)
    case = CASES["terms_all"]
    setting = padded_setting(case, way, 0)
    with torch.no_grad():
        plain = padded_subject(case, setting, 0.0, dtype).run(backend)
        for poison in (np.nan, -np.inf, 6e4 if dtype == "float16" else 1e38):
            found = padded_subject(case, setting, poison, dtype).run(backend)
            assert all(torch.equal(*pair) for pair in zip(found, plain, strict=True)), poison
