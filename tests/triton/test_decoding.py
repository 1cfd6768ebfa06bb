"""Few queries over many keys: the keys are shared out among programs, whose parts are merged."""

from __future__ import annotations

import pytest
import torch

from tests.triton import everywhere
from tests.triton.test_kernels import CALLS, TABLES, hold_to_the_equation, make_call, random_cotangents, run

pytest_plugins = ["tests.contract.fresh"]

QUERIES, KEYS = 3, 75
SOME = (
    "no table", "relative keys", "zero beyond", "tables beyond every offset", "causal", "a window",
    "rows that see nothing", "no row sees anything", "masks", "the query itself", "groups of heads", "wide", "dropout",
    "a float mask", "a float mask for all queries",
)  # fmt: skip


@pytest.fixture(autouse=True)
def on_device(device: str, rng):
    """Fresh tensors lie on the device of the test."""
    with torch.device(device):
        yield


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is one tile of 16 keys, at a width of 24: KEYS keys make five."""
    from relattn.backends.triton.kernels import decoding

    monkeypatch.setattr(decoding, "NUMBERS", 16 * 32)
    monkeypatch.setattr(decoding, "KEYS_PER_SPLIT", 16)


@everywhere
@pytest.mark.parametrize("name", SOME)
def test_output_and_every_gradient(name: str, device: str, short_parts) -> None:
    hold_to_the_equation(make_call(**CALLS[name] | {"lengths": (QUERIES, KEYS)}))


@everywhere
def test_half_precision(device: str, short_parts) -> None:
    hold_to_the_equation(make_call(torch.bfloat16, lengths=(1, KEYS), masks="k"))


@everywhere
def test_the_same_bits_on_every_run(device: str, short_parts) -> None:
    call = make_call(lengths=(QUERIES, KEYS), batch=2)
    cotangents = random_cotangents(call)
    first, second = run(call, *cotangents), run(call, *cotangents)
    assert all(torch.equal(first[name], second[name]) for name in first)


@everywhere
def test_a_tile_of_queries_gives_the_same(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout included: the factors of a pair are one whichever kernel computes it."""
    from relattn.backends.triton.kernels import forward

    call = make_call(lengths=(QUERIES, KEYS), masks="ks", dropout_p=0.4, seed=5)
    few = forward.forward(call)
    monkeypatch.setattr(forward, "MAX_QUERIES", 0)
    for ours, theirs in zip(few[:2], forward.forward(call)[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu"])
def test_parts_keep_programs_busy_and_are_worth_one(device: str) -> None:
    """By rows of a call, its keys and what of them is visible; no kernel runs."""
    from relattn.backends.triton.kernels.decoding import _num_splits

    def parts(heads: int, keys: int, **given: int) -> int:
        call = make_call(heads=(heads, heads), lengths=(1, keys), widths=(1, 1, 1), tables=TABLES[:1], **given)
        return _num_splits(call)

    assert parts(16, 8192) == 64
    assert parts(64, 8192) == 16
    assert parts(16, 1000) == 8
    assert parts(2000, 300) == 1
    assert parts(1, 1_000_000) == 64
    assert parts(16, 8192, offset=-8191, lowest=-300, highest=0) == 3
    assert parts(16, 8192, lowest=5, highest=3) == 1
