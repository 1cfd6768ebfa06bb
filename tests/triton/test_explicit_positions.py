"""Explicit positions, tensors as starts and other axes on the kernels: every encoding, every term, both orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.axes import AXES_CASES
from tests.contract.cases import CASES, DIFFERENT
from tests.contract.check import by_formula, check
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import make_subject
from tests.native.test_axes import on_grid
from tests.native.test_explicit_positions import EXPLICIT, setting_of
from tests.triton import everywhere

pytest_plugins = ["tests.contract.fresh"]

FEW = pytest.mark.parametrize("few", [0, 8], ids=["in tiles", "few queries"])


@pytest.fixture(autouse=True)
def tiles_or_rows(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which kernel computes a few queries."""
    from relattn.backends.triton.kernels import forward

    monkeypatch.setattr(forward, "MAX_QUERIES", request.node.callspec.params.get("few", 0))


@pytest.fixture
def either(tiles_or_rows: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two kernels, by the name of the test: they share the code of scores, masks and starts."""
    from relattn.backends.triton.kernels import forward

    monkeypatch.setattr(forward, "MAX_QUERIES", int(rng.choice([0, 8])))


@pytest.fixture
def ordered(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from relattn.backends.triton.kernels import backward

    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: request.param == "in order")


def in_orders(names: dict[str, tuple[str, ...]]) -> pytest.MarkDecorator:
    """The cases of each order; names: by "atomic" and "in order"."""
    pairs = [(order, name) for order, several in names.items() for name in several]
    return pytest.mark.parametrize(("ordered", "name"), pairs, indirect=["ordered"])


@everywhere
@pytest.mark.parametrize("name", AXES_CASES)
def test_encodings_on_axes(name: str, either: None, device: str, rng: np.random.Generator) -> None:
    """Grids, parts of them, class tokens, explicit positions, starts, digits, every mask; some capped, with sinks."""
    setting = random_setting(rng, **AXES_CASES[name].requirements(), kind=str(rng.choice(["any", "capped"])))
    check(make_subject(AXES_CASES[name], setting, "float32"), "triton", "float32", truth=by_formula, device=device)


@everywhere
@pytest.mark.parametrize("name", DIFFERENT)
def test_encodings_on_a_listed_sequence(name: str, either: None, device: str, rng: np.random.Generator) -> None:
    """Gaps, duplicates and any order, under limits; one list or one for each batch element."""
    kind = str(rng.choice(list(EXPLICIT)))
    setting = setting_of(kind, name, rng, int(rng.integers(1, 6)), int(rng.integers(1, 8)))
    check(make_subject(CASES[name], setting, "float32"), "triton", "float32", truth=by_formula, device=device)


ACROSS = {"cpu": (17, 18), "cuda": (150, 140)}
BY_ORDER = {
    "atomic": ("terms_all", "terms_all_error", "key_query+shaw"), "in order": ("terms_all", "key_query+shaw", "t5")
}  # fmt: skip
ON_GRIDS = {
    "atomic": ("everywhere", "key_query_on_both", "shaw_on_both", "layoutlm_v3"),
    "in order": ("sam", "beit", "key_query_on_both"),
}
"""Between the two each kind of table in both orders."""


@everywhere
@in_orders(BY_ORDER)
def test_across_tiles(name: str, ordered: None, device: str, rng: np.random.Generator) -> None:
    """Far out of order, and in order; every gradient with and without atomic additions."""
    setting = setting_of(
        str(rng.choice(["any order", "gaps"])), name, rng, *ACROSS[device], num_heads=2, num_kv_heads=1
    )
    check(make_subject(CASES[name], setting, "float32"), "triton", "float32", truth=by_formula, device=device)


@everywhere
@in_orders(ON_GRIDS)
def test_grids_across_tiles(name: str, ordered: None, device: str, rng: np.random.Generator) -> None:
    """Behind a class token where the encoding takes one, under causality, and in half precision."""
    sizes = (4, 5) if device == "cpu" else (12, 13)
    dtype = str(rng.choice(["float32", "bfloat16"]))
    setting = on_grid(name, rng, sizes, batch=1, is_causal=bool(rng.integers(2)))
    check(make_subject(AXES_CASES[name], setting, dtype), "triton", dtype, truth=by_formula, device=device)


@everywhere
@pytest.mark.parametrize("mask", ["key_mask", "segments", "boolean", "float", "cap"])
def test_beside_masks(mask: str, either: None, device: str, rng: np.random.Generator) -> None:
    """With rows that see nothing, and keys that nobody sees; heads that share keys."""
    setting = on_grid("everywhere", rng, (3, 4), queries=5)
    rows, keys = setting.query_length, setting.key_length
    given = {
        "key_mask": {"key_mask": rng.random((2, keys)) < 0.3},
        "segments": {"segment_ids": (rng.integers(0, 9, (2, rows)), rng.integers(0, 5, (2, keys)))},
        "boolean": {"attn_mask": rng.random((2, 1, rows, keys)) < 0.3},
        "float": {"attn_mask": np.where(rng.random((1, 4, rows, keys)) < 0.5, -np.inf, rng.normal(size=keys))},
        "cap": {"softcap": 2.0, "key_bias": (1, 4), "sinks": "per head"},
    }[mask]
    subject = make_subject(AXES_CASES["everywhere"], replace(setting, **given), "float32")
    check(subject, "triton", "float32", truth=by_formula, device=device)


@everywhere
def test_positions_beyond_32_bits(either: None, device: str, rng: np.random.Generator) -> None:
    """Close to one another far out, and some of them far from the others: beyond the table, on either side."""
    far = 2**59
    keys = far + rng.integers(-4, 4, (2, 19))
    keys[0, ::3] -= 2 * far - 7
    setting = Setting(
        2, 2, 1, 5, 19, 4, 3, query_position=far + rng.integers(-4, 4, 5), key_position=keys, window=(5, None), seed=3
    )
    for name in ("terms_all", "shaw"):
        check(make_subject(CASES[name], setting, "float32"), "triton", "float32", truth=by_formula, device=device)


@everywhere
@pytest.mark.parametrize(
    ("ordered", "far"),
    [("atomic", 0), ("atomic", 2**40), ("atomic", -(2**59)), ("in order", 0)],
    indirect=["ordered"],
)
def test_starts_as_tensors(far: int, either: None, ordered: None, device: str, rng: np.random.Generator) -> None:
    """However far out, and however far apart: then everything lies beyond the tables, or is hidden."""
    setting = Setting(2, 2, 1, 5, 19, 4, 3, query_position=np.array(far + 9), seed=int(rng.integers(2**32)))
    near = replace(setting, key_position=np.array(far), window=(9, 3))
    for name, one in (("terms_all", near), ("terms_all_error", near), ("shaw", replace(setting, key_position=0))):
        check(make_subject(CASES[name], one, "float32"), "triton", "float32", truth=by_formula, device=device)
    hidden = make_subject(CASES["shaw"], replace(setting, key_position=np.array(far + 99), is_causal=True), "float32")
    output, lse = hidden.on(device).run("triton")
    assert not output.any() and (lse == -torch.inf).all()


@everywhere
def test_bits_repeat_in_a_fixed_order(device: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    from relattn.backends.triton.kernels import backward

    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: True)
    sizes = (2, 3) if device == "cpu" else (12, 13)
    subject = make_subject(AXES_CASES["everywhere"], on_grid("everywhere", rng, sizes), "float32").on(device)

    def outcome() -> list[torch.Tensor]:
        answers = subject.run("triton")
        cotangents = [torch.ones_like(answer) for answer in answers]
        return [*answers, *torch.autograd.grad(answers, list(subject.arrays.values()), cotangents)]

    assert all(torch.equal(*pair) for pair in zip(outcome(), outcome(), strict=True))


@everywhere
@FEW
def test_dropout_drops_the_same_pairs_as_on_runs(few: int, device: str, rng: np.random.Generator) -> None:
    """Positions written as a list are the run itself; so dropout's factors, and every number, are too."""
    run = Setting(2, 2, 1, 7, 19, 4, 3, query_position=5, is_causal=True, dropout_p=0.4, seed=11)
    explicit = replace(run, query_position=5 + np.arange(7), key_position=np.arange(19))
    found = []
    for setting in (run, explicit):
        subject = make_subject(CASES["terms_all"], setting, "float32").on(device)
        answers = subject.run("triton")
        cotangents = [torch.ones_like(answer) for answer in answers]
        found.append([*answers, *torch.autograd.grad(answers, list(subject.arrays.values()), cotangents)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
