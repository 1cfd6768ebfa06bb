"""No queries, no keys, no batch: a row with nothing to attend to gives output 0, lse -inf and zero gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import relattn
from relattn.positions.positions import Positions
from tests.contract.cases import BACKEND_ANSWERS, CASES, runnable_pairs
from tests.contract.settings import random_setting
from tests.contract.subject import make_subject

pytestmark = pytest.mark.one_in(8)

pytest_plugins = ["tests.contract.fresh"]

UNIVERSAL = [(name, backend) for name, backend in runnable_pairs() if backend not in BACKEND_ANSWERS]


@pytest.mark.pairs
@pytest.mark.parametrize("empty", ["query_length", "key_length", "batch"])
@pytest.mark.parametrize(("name", "backend"), UNIVERSAL, indirect=["backend"])
def test_empty_axes(name: str, backend: str, empty: str, rng: np.random.Generator) -> None:
    """The side that is there may hold anything: 0 * inf must not reach a table's gradient."""
    setting = random_setting(rng, **CASES[name].requirements(), kind="bare")
    start = (0, np.array(2))[int(rng.integers(2))]  # a start given as a tensor cannot tell how many pairs are visible
    setting = replace(setting, attn_mask=None, query_position=start, **{empty: 0})
    subject = make_subject(CASES[name], setting)
    with torch.no_grad():
        for given in {"query", "key", "value", "terms.query", "terms.key", "terms.relative_query"} & set(
            subject.arrays
        ):
            subject.arrays[given].fill_(torch.inf)
    output, lse = subject.run(backend)
    query, value = subject.arrays["query"], subject.arrays["value"]
    assert output.shape == (*query.shape[:3], value.shape[3])
    assert lse.shape == query.shape[:3]
    assert not output.any()
    assert (lse == -torch.inf).all()
    arrays = list(subject.arrays.values())
    answers = (output.sum() + lse.exp().sum(),)
    gradients = torch.autograd.grad(answers, arrays, allow_unused=True, materialize_grads=True)
    assert not any(gradient.any() for gradient in gradients)


EVERY_PLACE = {
    "starts": lambda batch, length: 3,
    "far starts": lambda batch, length: 100 - length,
    "starts as tensors": lambda batch, length: np.array(3),
    "explicit": lambda batch, length: np.arange(length),
    "explicit for each batch element": lambda batch, length: np.arange(batch * length).reshape(batch, length) % 5,
}
EVERY_MASK = {
    "none": lambda batch, heads, queries, keys: {},
    "key_mask": lambda batch, heads, queries, keys: {"key_mask": np.ones((batch, keys), dtype=bool)},
    "segments": lambda batch, heads, queries, keys: {
        "segment_ids": (np.zeros((batch, queries), dtype=int), np.zeros((batch, keys), dtype=int))
    },
    "window": lambda batch, heads, queries, keys: {"window": (2, 1)},
    "boolean": lambda batch, heads, queries, keys: {"attn_mask": np.ones((batch, 1, queries, keys), dtype=bool)},
    "float": lambda batch, heads, queries, keys: {"attn_mask": np.zeros((batch, heads, queries, keys))},
}


@pytest.mark.pairs
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize(("name", "backend"), UNIVERSAL, indirect=["backend"])
def test_empty_axes_at_every_place_under_every_mask(name: str, backend: str, sizes, rng: np.random.Generator) -> None:
    """A few of the combinations: both sides have a place of their own."""
    batch, queries, keys = sizes
    for _ in range(2):
        at, to, mask = (str(rng.choice(list(options))) for options in (EVERY_PLACE, EVERY_PLACE, EVERY_MASK))
        bare = random_setting(rng, **CASES[name].requirements(), kind="bare")
        setting = replace(
            bare, attn_mask=None, mask_rank=4, batch=batch, query_length=queries, key_length=keys,
            query_position=EVERY_PLACE[at](batch, queries), key_position=EVERY_PLACE[to](batch, keys),
        )  # fmt: skip
        setting = replace(setting, **EVERY_MASK[mask](batch, setting.num_heads, queries, keys))
        subject = make_subject(CASES[name], setting)
        output, lse = subject.run(backend)
        assert output.shape == (*subject.arrays["query"].shape[:3], subject.arrays["value"].shape[3])
        assert not output.any()
        assert (lse == -torch.inf).all()
        arrays = list(subject.arrays.values())
        answers = (output.sum() + lse.exp().sum(),)
        gradients = torch.autograd.grad(answers, arrays, allow_unused=True, materialize_grads=True)
        assert not any(gradient.any() for gradient in gradients), (at, to, mask)


@pytest.mark.parametrize("lengths", [(0, 4), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("backend", ["reference", "dense", "blocks"])
def test_a_sum_of_tables_that_refuse_where_no_pair_exists(backend: str, lengths: tuple[int, int]) -> None:
    """Far apart, where one operand makes its rows for the offsets of a call and the other has its own."""
    encoding = relattn.RelativeEmbedding(4, 3) + relattn.TransformerXLEmbedding(2, 4) + relattn.AlibiBias(2)
    query, key = (torch.zeros(2, 2, length, 4) for length in lengths)
    output = relattn.relative_attention(
        query, key, key, encoding=encoding, query_position=100, key_position=7, backend=backend
    )
    assert output.shape == query.shape
    assert not output.any()


class Elsewhere(relattn.RelativeEncoding):
    """Relative keys and a bias for the offsets first .. first + 2, refused beyond."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.rows = torch.nn.Parameter(torch.ones(2, 3, 4))

    def terms(self, query: torch.Tensor, key: torch.Tensor, positions: Positions) -> relattn.ScoreTerms:
        tables = [relattn.OffsetTable(rows, self.first, "error") for rows in (self.rows, self.rows[..., 0])]
        return relattn.ScoreTerms(relative_keys=tables[0], bias=tables[1])


@pytest.mark.parametrize("lengths", [(0, 4), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("backend", ["reference", "dense", "blocks"])
def test_a_sum_of_tables_that_share_no_offset(backend: str, lengths: tuple[int, int]) -> None:
    """Each refuses nothing where there is no pair; and where there is one, the first of them refuses it."""
    encoding = Elsewhere(-100) + Elsewhere(100)
    query, key = (torch.zeros(2, 2, length, 4) for length in lengths)
    output = relattn.relative_attention(query, key, key, encoding=encoding, backend=backend)
    assert output.shape == query.shape
    assert not output.any()
    found = torch.autograd.grad(output.sum(), list(encoding.parameters()), allow_unused=True, materialize_grads=True)
    assert not any(gradient.any() for gradient in found)
    pair = torch.zeros(2, 2, 1, 4)
    with pytest.raises(ValueError, match="use beyond='clamp' or 'zero', or give more rows"):
        relattn.relative_attention(pair, pair, pair, encoding=encoding, backend=backend)


@pytest.mark.parametrize(("name", "backend"), UNIVERSAL, indirect=["backend"])
def test_fully_masked_rows_have_no_gradient(name: str, backend: str, rng: np.random.Generator) -> None:
    """Every mask that can close a row, one after the other; NaN would count as a gradient."""
    setting = random_setting(rng, **CASES[name].requirements(), kind="bare")
    setting = replace(setting, attn_mask=None, mask_rank=4)
    batch, queries, keys = setting.batch, setting.query_length, setting.key_length
    closing = [
        {"key_mask": np.zeros((batch, keys), dtype=bool)},
        {"segment_ids": (np.zeros((batch, queries), dtype=int), np.ones((batch, keys), dtype=int))},
        {"attn_mask": np.zeros((1, 1, queries, keys), dtype=bool)},
        {"attn_mask": np.full((batch, 1, 1, keys), -np.inf)},
        {"window": (0, 0), "key_position": 100},
        {"is_causal": True, "key_position": 100},
        {"is_causal": True, "key_position": np.arange(keys) + 100},
    ]
    for masks in closing:
        subject = make_subject(CASES[name], replace(setting, **masks))
        output, lse = subject.run(backend)
        assert not output.any()
        assert (lse == -torch.inf).all()
        answers, weights = (output, lse), (torch.ones_like(output), torch.ones_like(lse))
        arrays = list(subject.arrays.values())
        gradients = torch.autograd.grad(answers, arrays, weights, allow_unused=True, materialize_grads=True)
        assert not any(gradient.any() for gradient in gradients), f"a gradient passes {masks}"
