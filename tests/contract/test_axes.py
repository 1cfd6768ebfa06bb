"""Encodings on axes: terms by hand, dropout, equal bits, FlexAttention, padding, empty calls."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from relattn import (
    GridBias,
    GridPositions,
    OffsetTable,
    RotaryEmbedding,
    ScoreTerms,
    T5Bias,
    attention_weights,
    explain,
    flex_score_mod,
    grid,
    relative_attention,
)
from tests import seeds
from tests.contract.axes import AXES_CASES
from tests.contract.blocks import TESTED_BACKENDS
from tests.contract.calls import assert_equal, attend, gradients
from tests.contract.check import by_formula, check
from tests.contract.places import Place, explicit, on_a_grid
from tests.contract.settings import Setting, random_setting
from tests.contract.subject import INPUTS, Subject, make_subject

pytest_plugins = ["tests.contract.fresh"]

RUNNING = [backend for backend in TESTED_BACKENDS if backend != "sdpa"]
every_backend = pytest.mark.parametrize("backend", RUNNING, indirect=True)
KINDS = ("swin", "beit", "sam", "shaw_on_both", "key_query_on_both", "everywhere")
"""Between them every kind of table, on one axis and on several."""


def on_grid(name: str, rng: np.random.Generator, *sizes: int, prefix_tokens: int = 1, **changes) -> Subject:
    """Self-attention over a grid behind a class token."""
    length = prefix_tokens + int(np.prod(sizes))
    axes = on_a_grid(("y", "x"), sizes, prefix_tokens, first=0, length=length)
    setting = Setting(2, 4, 2, length, length, 4, 4, axes={a: (p, p) for a, p in axes.items()}, **changes)
    return make_subject(AXES_CASES[name], replace(setting, seed=int(rng.integers(2**32))))


@pytest.mark.parametrize("backend", ["blocks"], indirect=True)
@pytest.mark.parametrize("name", KINDS)
def test_dropout_is_the_documented_one(name: str, backend: str, rng: np.random.Generator) -> None:
    """Whatever the blocks are: the factor of a pair follows from the seed and its place alone."""
    check(on_grid(name, rng, 2, 3, dropout_p=0.3), backend, "float64", truth=by_formula)


@pytest.mark.one_in(4)
@every_backend
@pytest.mark.parametrize("name", KINDS)
def test_bits_repeat(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = on_grid(name, rng, 3, 4)
    leaves = list(subject.arrays.values())
    first, second = (
        (*answers, *gradients(answers, leaves)) for answers in (attend(subject, backend), attend(subject, backend))
    )
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


@every_backend
def test_lists_of_a_grid_s_positions_are_the_grid(backend: str, rng: np.random.Generator) -> None:
    """Without prefix tokens; and so are digits written another way, and positions further on."""
    for name in ("swin", "sam", "swin_v2", "shaw_on_both", "grid_embedding"):
        subject = on_grid(name, rng, 2, 3, prefix_tokens=0)
        expected = attend(subject, backend)
        y, x = np.repeat([0, 1], 3), np.tile([0, 1, 2], 2)
        for given in (
            {"y": torch.from_numpy(y), "x": torch.from_numpy(x)},
            {"y": torch.from_numpy(np.stack([y, y + 7])), "x": torch.from_numpy(x).int()},
            {"y": GridPositions(((1, 3, 9),), start=4), "x": GridPositions(((1, 1, 3),), first=3)},
        ):
            assert_equal(attend(subject, backend, query_position=given, key_position=given), expected)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_a_rotation_whose_angles_follow_the_length_of_an_axis(rope_type: str, rng: np.random.Generator) -> None:
    """The length is the largest position on the axis + 1, not the number of tokens."""
    scaling = {"rope_type": rope_type, "factor": 2.0, "original_max_position_embeddings": 3}
    if rope_type == "longrope":
        scaling |= {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}
    encoding = RotaryEmbedding(4, scaling=scaling).on("x")
    query, key, value = (torch.randn(2, 2, 12, 4, dtype=torch.float64) for _ in range(3))
    answers = []
    for width in (3, 4):  # as long as the original, and longer
        where = grid(12 // width, width)
        explicit = {axis: digits.expand(12, query.device) for axis, digits in where.items()}
        of_a_grid, of_explicit = (
            relative_attention(query, key, value, encoding=encoding, query_position=one, key_position=one)
            for one in (where, explicit)
        )
        assert_equal(of_a_grid, of_explicit)
        answers.append(of_a_grid)
    assert not torch.allclose(*answers)
    behind_a_token = grid(4, 3, prefix_tokens=1)
    longer = [torch.cat([torch.randn_like(one[:, :, :1]), one], dim=2) for one in (query, key, value)]
    explicit = {"x": torch.cat([torch.zeros(1, dtype=torch.long), torch.arange(12) % 3]), "y": 0}
    found, expected = (
        relative_attention(*longer, encoding=encoding, query_position=one, key_position=one)
        for one in (behind_a_token, explicit)
    )
    assert_equal(found, expected)


@every_backend
def test_terms_by_hand_are_the_encoding_s(backend: str, rng: np.random.Generator) -> None:
    """`ScoreTerms.on`: of one axis, of two together, and in a sum with the sequence's."""
    query, key, value = (torch.randn(2, 3, 7, 4, dtype=torch.float64) for _ in range(3))
    where = grid(2, 3, prefix_tokens=1)
    places = {"query_position": where, "key_position": where, "backend": backend}
    t5 = T5Bias(3, num_buckets=4, max_distance=4).double()
    torch.nn.init.normal_(t5.bias)
    offsets = torch.arange(-6, 7)
    bias = OffsetTable(t5.bias[t5.buckets(offsets)].t(), -6)
    by_encoding = relative_attention(query, key, value, encoding=t5 + t5.on("y") + t5.on("x"), **places)
    terms = ScoreTerms(bias=bias)
    by_hand = relative_attention(query, key, value, encoding=terms + terms.on("y") + terms.on("x"), **places)
    assert_equal(by_hand, by_encoding)

    swin = GridBias((2, 3), 3).double()
    torch.nn.init.normal_(swin.bias)
    joint = ScoreTerms(bias=OffsetTable(swin.bias.flip(0).t(), -7)).on("y", "x")  # rows ascending in (dy, dx)
    by_encoding = relative_attention(query, key, value, encoding=swin, **places)
    assert_equal(relative_attention(query, key, value, encoding=joint, **places), by_encoding)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["swin", "beit", "layoutlm_v3", "swin_v2"])
def test_flex_attention_with_our_score_mod(name: str, rng: np.random.Generator) -> None:
    """Biases on axes, in PyTorch's own eager FlexAttention."""
    subject = on_grid(name, rng, 2, 3, prefix_tokens=0 if name == "layoutlm_v3" else 1)
    if name == "layoutlm_v3":
        axes = {axis: (explicit(rng, 6, 2), explicit(rng, 6)) for axis in ("x", "y")}
        subject = make_subject(AXES_CASES[name], replace(subject.setting, axes=axes))
    given = subject.arguments()
    places = {name: given[name] for name in ("query_position", "key_position")}
    score_mod = flex_score_mod(subject.encoding(), given["query"], given["key"], **places)
    inputs = (given[one].detach() for one in INPUTS)
    with torch.no_grad():
        theirs = flex_attention(*inputs, score_mod, enable_gqa=True)
        expected = subject.run("dense", return_lse=False)
    assert_equal(theirs, expected)


def test_weights_and_explain(rng: np.random.Generator) -> None:
    subject = on_grid("everywhere", rng, 2, 3)
    weights = attention_weights(**subject.arguments())
    truth = subject.oracle(subject.numbers()).weights
    assert_equal(weights.detach(), torch.from_numpy(truth))
    found = explain(**subject.arguments())
    assert found.chosen in ("dense", "blocks")


@pytest.mark.parametrize("name", list(AXES_CASES))
def test_every_padded_key_is_as_if_it_were_not_there(name: str, rng: np.random.Generator) -> None:
    """NaN where no query looks: the same bits."""
    setting = random_setting(rng, **AXES_CASES[name].requirements())
    hidden = np.ones((setting.batch, setting.key_length), dtype=bool)
    hidden[:, -1] = False
    setting = replace(setting, key_mask=hidden, segment_ids=None)
    for backend in ("dense", "blocks", "reference"):
        subject = make_subject(AXES_CASES[name], setting)
        plain = subject.run(backend)
        with torch.no_grad():
            for array in ("key", "value"):
                subject.arrays[array][:, :, -1] = torch.nan
        found = subject.run(backend)
        assert all(torch.equal(*pair) for pair in zip(found, plain, strict=True))


@every_backend
@pytest.mark.parametrize("lengths", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("name", ["swin", "beit", "sam", "shaw_on_both"])
def test_no_queries_or_no_keys(name: str, lengths: tuple[int, int], backend: str, rng: np.random.Generator) -> None:
    sides = [on_a_grid(("y", "x"), (2, 3), 1, first=0, length=length) for length in lengths]
    axes: dict[str, tuple[Place, Place]] = {axis: (sides[0][axis], sides[1][axis]) for axis in ("y", "x")}
    subject = make_subject(AXES_CASES[name], Setting(2, 2, 1, *lengths, 4, 4, axes=axes, seed=seeds.seed(name)))
    output, lse = subject.run(backend)
    assert output.shape == (2, 2, lengths[0], 4) and not output.any()
    assert (lse == -torch.inf).all()
    found = torch.autograd.grad(output.sum(), list(subject.arrays.values()), allow_unused=True, materialize_grads=True)
    assert not any(gradient.any() for gradient in found)
