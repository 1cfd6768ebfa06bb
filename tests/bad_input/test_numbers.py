"""Numbers, flags, window and backend."""

import sys

import numpy as np
import pytest
import torch

from relattn import UnsupportedError, attention_and_lse, attention_weights, explain, relative_attention
from relattn.backends.select import BACKENDS
from tests.bad_input.refusal import call, ones, refused

NAN, INF = float("nan"), float("inf")
SIDES = "expected (left, right), each an int of at least 0 and below 2**60, or None for no limit on that side"


@pytest.mark.parametrize("came", [NAN, INF, -0.1, 1.5, 2, True, "0.1", None, [0.1], torch.tensor(0.1)], ids=repr)
def test_dropout(came):
    with refused(ValueError, f"dropout_p: got {came!r}; expected a probability between 0 and 1"):
        call(dropout_p=came)


@pytest.mark.parametrize("came", [NAN, INF, -INF, True, "1", [1.0], 1j, torch.tensor(1.0)], ids=repr)
def test_scale(came):
    with refused(ValueError, f"scale: got {came!r}; expected a finite number, or None for 1/sqrt(width)"):
        call(scale=came)


@pytest.mark.parametrize("came", [10**400, -(10**400), 10**5000], ids=["positive", "negative", "too long to print"])
def test_a_scale_that_no_float_holds(came):
    said = f"scale: got an int of {came.bit_length()} bits; expected a finite number, or None for 1/sqrt(width)"
    with refused(ValueError, said):
        call(scale=came)


@pytest.mark.parametrize("name", ["is_causal", "enable_gqa"])
@pytest.mark.parametrize("came", ["no", None, 0.125, 1, torch.tensor(True)], ids=repr)
def test_flags(name, came):
    with refused(TypeError, f"{name}: got {came!r}; expected True or False"):
        call(**{name: came})


def test_scale_in_the_place_of_is_causal():
    with refused(TypeError, "is_causal: got 0.125; expected True or False"):
        relative_attention(ones(2, 4, 5, 8), ones(2, 4, 6, 8), ones(2, 4, 6, 8), None, 0.0, 0.125)


@pytest.mark.parametrize(
    "came",
    [
        5, -1, "ab", True, (1,), (1, 2, 3), (-1, 0), (0, -1), (1.5, 0), (True, 0), ("1", "2"), {1: 2, 3: 4},
        (torch.tensor(1), 0), torch.tensor([1, 2]), np.array([1, 2]), (np.bool_(True), 0), (np.float64(1), 0),
        (np.int64(-1), 0), (None, sys.maxsize), (sys.maxsize, 0), (2**60, 0),
    ],
    ids=repr,
)  # fmt: skip
def test_window(came):
    with refused(ValueError, f"window: got {came!r}; {SIDES}"):
        call(window=came)


@pytest.mark.parametrize("function", [relative_attention, attention_weights, explain])
@pytest.mark.parametrize("came", ["fast", "Dense", "", None, 3, True, ["dense"], {}], ids=repr)
def test_unknown_backend(function, came):
    names = ", ".join(map(repr, ("auto", *BACKENDS)))
    with refused(ValueError, f"backend: got {came!r}; expected one of {names}"):
        call(function, backend=came)


LIMITS = "its causality compares indices: no window, no explicit positions, and equal starts"
SDPA_LACKS = {
    "it has no bias": {"bias": True},
    "it has no relative keys": {"relative_keys": True},
    "it has no relative queries": {"relative_queries": True},
    "it has no relative values": {"relative_values": True},
    "it has no key mask": {"key_mask": ones(2, 6, dtype=torch.bool)},
    "it has no segments": {"segment_ids": (ones(2, 5, dtype=torch.long), ones(2, 6, dtype=torch.long))},
    LIMITS: {"window": (1, 1)},
    "it takes a mask or causality, not both": {"attn_mask": ones(5, 6), "is_causal": True},
    "it is not defined without queries or without keys": {"key": ones(2, 4, 0, 8), "value": ones(2, 4, 0, 8)},
}


def lowered(changes: dict) -> dict:
    """The call's arguments: the names of terms stand for an encoding that has them."""
    from relattn import OffsetTable, ScoreTerms

    tables = {name: OffsetTable(ones(1, 21, 8), -10) for name in changes if name.startswith("relative_")}
    if "bias" in changes:
        tables["bias"] = OffsetTable(ones(1, 21), -10)
    rest = {name: value for name, value in changes.items() if name not in tables}
    return {**rest, "encoding": ScoreTerms(**tables)} if tables else rest


@pytest.mark.parametrize("reason", SDPA_LACKS)
@pytest.mark.parametrize("function", [relative_attention, explain])
def test_named_backend_that_cannot_run(function, reason):
    with refused(UnsupportedError, f"backend='sdpa' cannot run this: {reason}; use 'dense'...") as caught:
        call(function, backend="sdpa", **lowered(SDPA_LACKS[reason]))
    assert caught.value.reasons == {"sdpa": [reason]}


@pytest.mark.parametrize(
    "positions",
    [
        {"query_position": torch.arange(5)}, {"query_position": torch.tensor(0)}, {"key_position": torch.tensor(0)},
        {"query_position": 3}, {"key_position": -1},
    ],
    ids=str,
)  # fmt: skip
def test_positions_that_sdpa_cannot_take(positions):
    with refused(UnsupportedError, f"backend='sdpa' cannot run this: {LIMITS}; use 'dense'..."):
        call(backend="sdpa", is_causal=True, **positions)


def test_sdpa_has_no_lse():
    with refused(UnsupportedError, "backend='sdpa' cannot run this: it returns no log-sum-exp; use 'dense'..."):
        call(attention_and_lse, backend="sdpa")


def test_every_reason_is_given():
    changes = lowered({"bias": True, "relative_values": True, "window": (1, 1)})
    with refused(UnsupportedError, "backend='sdpa' cannot run this: ...; ...; ...; ...; use 'dense'...") as caught:
        call(attention_and_lse, backend="sdpa", **changes)
    assert set(caught.value.reasons) == {"sdpa"}
    reasons = caught.value.reasons["sdpa"]
    assert sorted(reasons) == sorted(
        ["it has no relative values", "it has no bias", "it returns no log-sum-exp", LIMITS]
    )
    assert "; ".join(reasons) in str(caught.value)


@pytest.mark.parametrize("came", [0.1, 1, 1.0], ids=repr)
def test_weights_before_any_is_dropped(came):
    said = f"dropout_p: got {came!r}; expected 0, for attention_weights gives the weights before any is dropped"
    with refused(ValueError, said):
        call(attention_weights, dropout_p=came)
    call(attention_weights, dropout_p=0)


@pytest.mark.parametrize("function", [attention_weights, explain])
@pytest.mark.parametrize("came", [True, False, NAN, -0.1, np.bool_(True)], ids=repr)
def test_dropout_of_the_others(function, came):
    with refused(ValueError, f"dropout_p: got {came!r}; expected a probability between 0 and 1"):
        call(function, dropout_p=came)


@pytest.mark.parametrize("backend", sorted({*BACKENDS} - {"dense"}))
def test_backend_that_keeps_no_weights(backend):
    said = (
        f"backend: got {backend!r}, which does not keep the attention weights; expected 'dense', which does, or 'auto'"
    )
    with refused(UnsupportedError, said) as caught:
        call(attention_weights, backend=backend)
    assert caught.value.reasons == {backend: ["it does not keep the attention weights"]}
