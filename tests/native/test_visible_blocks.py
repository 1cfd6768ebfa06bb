"""Masks that leave whole blocks out, on the kernels: every kind of table within the budget, and what is left out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from relattn import RelativeEmbedding, T5Bias, relative_attention
from relattn.backends.cpu import inputs, operator
from relattn.equation.visible_blocks import EVERYTHING, LOOK, NOTHING, SIZE
from tests.contract.cases import CASES
from tests.contract.check import by_formula
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.native.passes import check
from tests.native.sets import every_set
from tests.native.test_axes import KERNELS
from tests.native.test_native import drawn

BATCH, HEADS = 2, 4
LENGTH = 3 * SIZE
"""Whole blocks of keys, and whole groups of 12 or 6 queries."""


@pytest.fixture(autouse=True)
def however_few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are found in every call."""
    monkeypatch.setattr(inputs, "PAIRS_TO_READ", 0)


def documents(rng: np.random.Generator, length: int, count: int) -> np.ndarray:
    """[BATCH, length]: ids of documents one after the other, of any lengths."""
    return np.sort(rng.integers(0, count, (BATCH, length)))


def padding(rng: np.random.Generator, keys: int) -> np.ndarray:
    """[BATCH, keys]: one row padded at its end, one at its beginning."""
    place = np.arange(keys)
    return np.stack([place < rng.integers(1, keys), place >= rng.integers(keys)])


def in_blocks(rng: np.random.Generator, queries: int, keys: int) -> np.ndarray:
    """[BATCH, 1, queries, keys]: documents, and one pair that sees each other across them."""
    seen = documents(rng, queries, 3)[:, None, :, None] == documents(rng, keys, 4)[:, None, None, :]
    seen[0, 0, 0, keys - 1] = True
    return seen


MASKS: dict[str, Callable[[np.random.Generator, int, int], dict[str, Any]]] = {
    "documents": lambda rng, queries, keys: {
        "segment_ids": (documents(rng, queries, 3), documents(rng, keys, 4)),
    },
    "documents that come back": lambda rng, queries, keys: {
        "segment_ids": (documents(rng, queries, 5) % 2, documents(rng, keys, 5) % 2),
    },
    "padding": lambda rng, queries, keys: {"key_mask": padding(rng, keys)},
    "padded documents": lambda rng, queries, keys: {
        "segment_ids": (documents(rng, queries, 3), documents(rng, keys, 3)), "key_mask": padding(rng, keys),
    },
    "a boolean mask": lambda rng, queries, keys: {"attn_mask": in_blocks(rng, queries, keys)},
    "a float mask": lambda rng, queries, keys: {
        "attn_mask": np.where(in_blocks(rng, queries, keys), rng.normal(size=keys), -np.inf),
    },
    "a mask of lowest numbers": lambda rng, queries, keys: {
        "attn_mask": np.where(in_blocks(rng, queries, keys), rng.normal(size=keys), np.finfo(np.float32).min),
    },
}  # fmt: skip
every_mask = pytest.mark.parametrize("mask", MASKS)
NAMES = "none", "terms_all", "terms_all_error", "relative_causal_zero", "key_query"
some_cases = pytest.mark.parametrize("name", NAMES)


def setting_of(mask: str, name: str, rng: np.random.Generator, queries: int, keys: int, **more: Any) -> Setting:
    causal = CASES[name].requirements().get("is_causal")
    return Setting(
        BATCH, CASES[name].requirements().get("num_heads") or HEADS, 2, queries, keys, 8, 5,
        is_causal=bool(rng.integers(2)) if causal is None else causal, seed=int(rng.integers(2**32)),
        **MASKS[mask](rng, queries, keys), **more,
    )  # fmt: skip


def test_the_kernels_have_the_same_blocks() -> None:
    text = (KERNELS / "call.h").read_text()
    assert f"MASK_BLOCK = {SIZE};" in text
    assert f"NOTHING = {NOTHING}, LOOK = {LOOK}, EVERYTHING = {EVERYTHING};" in text


@pytest.mark.one_in(20)
@every_set
@some_cases
@every_mask
def test_blocks_that_are_left_out(mask: str, name: str, instructions: str, rng: np.random.Generator) -> None:
    setting = setting_of(mask, name, rng, 150, 220, query_position=60)
    check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(20)
@every_set
@some_cases
@pytest.mark.parametrize("mask", [mask for mask in MASKS if mask != "a mask of lowest numbers"])
def test_in_small_blocks_of_half_precision(mask: str, name: str, instructions: str, rng, small_blocks) -> None:
    """A group of queries meets its keys again after a block that it does not see. Half precision has other lowest
    numbers than float32.
    """
    dtype = str(rng.choice(["bfloat16", "float16"]))
    setting = setting_of(mask, name, rng, 150, 220, query_position=60, window=(180, 90))
    check(make_subject(CASES[name], setting, dtype), "native", dtype, truth=by_formula)


@pytest.mark.one_in(9)
@every_set
@every_mask
def test_beside_limits_on_explicit_positions(mask: str, instructions: str, rng, small_blocks) -> None:
    places = {"query_position": rng.permutation(140), "key_position": np.sort(rng.integers(0, 140, 170))}
    setting = setting_of(mask, "terms_all", rng, 140, 170, window=(40, 9), **places)
    check(make_subject(CASES["terms_all"], setting, "float32"), "native", "float32", truth=by_formula)


@pytest.mark.one_in(3)
@every_set
@some_cases
@every_mask
def test_few_queries(mask: str, name: str, instructions: str, rng: np.random.Generator) -> None:
    setting = setting_of(mask, name, rng, 2, 600, query_position=400)
    check(make_subject(CASES[name], setting, "float32"), "native", "float32", truth=by_formula)


@every_set
@pytest.mark.parametrize("hiding", ["-inf", "lowest", "segments", "key_mask"])
def test_few_queries_beside_a_hole(hiding: str, instructions: str, rng: np.random.Generator, monkeypatch) -> None:
    """Scores between two visible blocks of a chunk are written, though nothing computes them."""
    made = operator.unwritten
    monkeypatch.setattr(operator, "unwritten", lambda floats: made(floats).fill_(np.inf))
    kept = np.ones((BATCH, 4 * SIZE), bool)
    kept[1, SIZE : 3 * SIZE] = False
    number = np.finfo(np.float32).min if hiding == "lowest" else -np.inf
    given = {
        "segments": {"segment_ids": (np.ones((BATCH, 2), int), kept.astype(int))},
        "key_mask": {"key_mask": kept},
    }.get(hiding, {"attn_mask": np.where(kept, 0.0, number)[:, None, None]})
    setting = Setting(BATCH, HEADS, 2, 2, 4 * SIZE, 8, 5, **given, seed=int(rng.integers(2**32)))
    check(make_subject(CASES["relative"], setting, "float32"), "native", "float32", truth=by_formula)


def test_a_bias_that_hides_leaves_the_lowest_number_to_be_seen() -> None:
    """Where it takes away the higher numbers of a row, a block of lowest ones is all that the row sees."""
    query, key, value = (drawn(1, 2, 4 * SIZE, 8) for _ in range(3))
    mask = torch.zeros(1, 1, 4 * SIZE, 4 * SIZE)
    mask[..., SIZE:] = torch.finfo(torch.float32).min
    number = torch.zeros(1, 1, 4 * SIZE)
    number[..., :SIZE] = torch.finfo(torch.float32).min
    found, expected = (
        relative_attention(query, key, value, mask, key_bias=number, backend=backend) for backend in ("native", "dense")
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("most", [0, 2 * LENGTH], ids=["packed keys", "keys where they lie"])
def test_a_document_is_not_read_for_another(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in one document of whole blocks and groups reaches no other: a weight of 0 would not stop it."""
    monkeypatch.setattr(operator, "QUERIES_OF_A_KEY", most)
    tensors = [drawn(1, 1, 2 * LENGTH, 16) for _ in range(3)]
    for tensor in tensors:
        tensor[..., :LENGTH, :] = torch.nan
    packed = [tensor.clone().requires_grad_(most == 0) for tensor in tensors]
    ids = torch.arange(2 * LENGTH)[None] // LENGTH
    output = relative_attention(*packed, segment_ids=ids, encoding=T5Bias(1), backend="native")
    assert output[..., :LENGTH, :].isnan().all()
    assert output[..., LENGTH:, :].isfinite().all()
    if most == 0:
        output[..., LENGTH:, :].sum().backward()
        assert all(tensor.grad is not None and tensor.grad[..., LENGTH:, :].isfinite().all() for tensor in packed)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_packed_documents_are_the_documents_as_a_batch(causal: bool) -> None:
    """Bit for bit where their lengths are those of blocks."""
    batch = [drawn(3, 2, 2 * SIZE, 16) for _ in range(3)]
    packed = [tensor.transpose(0, 1).reshape(1, 2, 6 * SIZE, 16) for tensor in batch]
    ids = torch.arange(6 * SIZE)[None] // (2 * SIZE)
    encoding = RelativeEmbedding(16, 6 * SIZE, num_heads=2)
    asked: dict[str, Any] = {"encoding": encoding, "is_causal": causal, "backend": "native"}
    alone = relative_attention(*batch, **asked).transpose(0, 1).reshape(1, 2, 6 * SIZE, 16)
    torch.testing.assert_close(relative_attention(*packed, segment_ids=ids, **asked), alone, rtol=0, atol=0)
