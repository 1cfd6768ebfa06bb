"""What must hold of relative attention whatever the encoding, without an oracle, over the contract's cases.

Both sides of an equation are computed in float64 and compared as `tests.contract.calls` says.
"""

from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from relattn import ScoreTerms, attention_weights, relative_attention
from relattn.equation.tables import OffsetTable
from tests.contract.blocks import TESTED_BACKENDS
from tests.contract.calls import EXACT, MODULES, assert_equal, attend, chunk_sizes, gradients, self_attention
from tests.contract.cases import BACKEND_ANSWERS, CASES, TIED_TO_THE_LENGTH
from tests.contract.settings import FAR, Setting, random_setting
from tests.contract.subject import INPUTS, Subject, make_subject

pytestmark = [pytest.mark.pairs, pytest.mark.one_in(8)]

pytest_plugins = ["tests.contract.fresh"]

ROTATING = [name for name in CASES if name.startswith("rope")]
UNIVERSAL = [backend for backend in TESTED_BACKENDS if backend not in BACKEND_ANSWERS]

every_case = pytest.mark.parametrize("name", CASES)
every_module = pytest.mark.parametrize("name", MODULES)
every_free_module = pytest.mark.parametrize("name", [n for n in MODULES if n not in TIED_TO_THE_LENGTH])
every_backend = pytest.mark.parametrize("backend", UNIVERSAL, indirect=True)


def draw(name: str, rng: np.random.Generator, kind: str = "any", **changes: Any) -> Subject:
    """A random call of a case, in float64."""
    setting = random_setting(rng, **CASES[name].requirements(), kind=kind)
    return make_subject(CASES[name], replace(setting, **changes))


# Without an encoding, and with an encoding that says nothing, it is PyTorch's own attention.


@pytest.mark.parametrize("backend", TESTED_BACKENDS, indirect=True)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_encoding_is_sdpa(backend: str, dtype: torch.dtype, rng: np.random.Generator) -> None:
    """Answers and gradients: GQA, boolean and float masks, causality with Lq != Lk, scale; same order of arguments."""
    tolerance = EXACT if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    for _ in range(12):
        subject = make_subject(CASES["none"], random_setting(rng, kind="bare"), str(dtype).removeprefix("torch."))
        call = subject.arguments()
        inputs = [call[name] for name in INPUTS]
        mask, is_causal, scale, gqa = (call[name] for name in ("attn_mask", "is_causal", "scale", "enable_gqa"))
        ours = relative_attention(*inputs, mask, 0.0, is_causal, scale, gqa, backend=backend)
        expected = F.scaled_dot_product_attention(*inputs, mask, 0.0, is_causal, scale=scale, enable_gqa=gqa)
        assert_equal(ours, expected, **tolerance)
        arrays = list(subject.arrays.values())
        assert_equal(gradients((ours,), arrays), gradients((expected,), arrays), **tolerance)


BY_FORMULA = ("alibi", "kerple", "sandwich")
"""Biases that are not zero where every parameter is."""
BY_PLACE = ("alibi", "sandwich", "function")
"""Slopes and ratios belong to the places of the heads, and a function's parameters to no head."""


@every_backend
@pytest.mark.parametrize(
    "name",
    [
        n
        for n, case in CASES.items()
        if n not in ROTATING and not any(by in n for by in BY_FORMULA) and not getattr(case, "rewrites", False)
    ],
)
def test_zero_tables_are_no_encoding(name: str, backend: str, rng: np.random.Generator) -> None:
    for _ in range(3):
        subject = draw(name, rng)
        with torch.no_grad():
            for array_name, array in subject.arrays.items():
                if array_name not in (*INPUTS, "attn_mask"):
                    array.zero_()
        assert_equal(attend(subject, backend), attend(subject, backend, encoding=None))


# Positions: only their difference counts.


@every_backend
@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith(TIED_TO_THE_LENGTH)])
def test_common_shift_of_positions_changes_nothing(name: str, backend: str, rng: np.random.Generator) -> None:
    """Bit for bit, but for a rotation, whose angles carry their own rounding: 2^-52 of 2^25, times a score's sum."""
    for shift in (1, -7, FAR):
        subject = draw(name, rng)
        positions = {side: subject.arguments()[side] for side in ("query_position", "key_position")}
        before = attend(subject, backend)
        after = attend(subject, backend, **{side: position + shift for side, position in positions.items()})
        tolerance = {"rtol": 0.0, "atol": 1e-6 if name in ROTATING else 0.0}
        assert_equal(after, before, **tolerance)


def forms_of(start: int, length: int, batch: int) -> list[Tensor]:
    """Every other way to say that positions begin at `start`."""
    explicit = torch.arange(start, start + length)
    return [torch.tensor(start), torch.tensor(start, dtype=torch.int32), explicit, explicit.expand(batch, -1).int()]


@every_backend
@every_case
def test_every_form_of_positions_gives_the_same(name: str, backend: str, rng: np.random.Generator) -> None:
    starts = {"query_position": int(rng.integers(0, 5)), "key_position": int(rng.integers(-3, 3))}
    subject = draw(name, rng, **starts)
    arrays = list(subject.arrays.values())
    expected = attend(subject, backend)
    expected_gradients = gradients(expected, arrays)
    setting = subject.setting
    query_forms = forms_of(starts["query_position"], setting.query_length, setting.batch)
    key_forms = forms_of(starts["key_position"], setting.key_length, setting.batch)
    for query_form, key_form in [*zip(query_forms, key_forms, strict=True), (query_forms[0], key_forms[3])]:
        answers = attend(subject, backend, query_position=query_form, key_position=key_form)
        assert_equal(answers, expected)
        assert_equal(gradients(answers, arrays), expected_gradients)


# Time: nothing comes from the future, and the past may be cut anywhere.


@every_backend
@every_case
def test_nothing_leaks_from_beyond_the_limits(name: str, backend: str, rng: np.random.Generator) -> None:
    """Keys and values out of sight of query i: no gradient, and no change of output i however much they change."""
    windows = [{"is_causal": True, "window": None}, {"is_causal": True, "window": (2, None)}]
    if CASES[name].requirements().get("is_causal") is None:
        windows.append({"is_causal": False, "window": (1, 1)})
    for limits in windows:
        subject = self_attention(name, rng, length=7)
        subject.setting = replace(subject.setting, **limits)
        output, lse = attend(subject, backend)
        i = int(rng.integers(7))
        left, right = limits["window"] or (None, None)
        last = i if limits["is_causal"] else i + right
        hidden = torch.tensor([j > last or (left is not None and j < i - left) for j in range(7)])
        answers = (output[:, :, i], lse[:, :, i])
        leaves = [array for side, array in subject.arrays.items() if side in ("key", "value", "terms.key")]
        for gradient in gradients(answers, leaves):
            assert not gradient[:, :, hidden].any(), "a hidden key has a gradient"
        with torch.no_grad():
            for leaf in leaves:
                leaf[:, :, hidden] += 1e3 * torch.randn_like(leaf[:, :, hidden])
        moved_output, moved_lse = attend(subject, backend)
        assert torch.equal(moved_output[:, :, i], output[:, :, i])
        assert torch.equal(moved_lse[:, :, i], lse[:, :, i])


@every_backend
def test_rows_of_hidden_offsets_have_no_gradient(backend: str, rng: np.random.Generator) -> None:
    """A table for both directions under causality: the future's rows learn nothing, the past's all do."""
    subject = self_attention("relative_per_head", rng, length=6)
    output, _ = attend(subject, backend, is_causal=True)
    (gradient,) = torch.autograd.grad(output.square().sum(), [subject.arrays["0.relative_keys"]])
    present = gradient.shape[1] // 2
    assert not gradient[:, present + 1 :].any()
    assert gradient[:, : present + 1].abs().amax(-1).all()


@every_backend
@every_free_module
def test_chunks_by_their_starts_are_the_whole(name: str, backend: str, rng: np.random.Generator) -> None:
    """Queries in chunks, each with its start, an int or a tensor, against keys prepared once: the full causal pass."""
    subject = replace_causal(self_attention(name, rng))
    whole = attend(subject, backend)
    query, key, value = (subject.arrays[side] for side in INPUTS)
    arrays = list(subject.arrays.values())
    gradients_of_whole = gradients(whole, arrays)
    for form in (int, torch.tensor):
        start, pieces = 0, []
        for size in chunk_sizes(rng, query.shape[2]):
            end = start + size
            piece = {"query": query[:, :, start:end], "key": key[:, :, :end], "value": value[:, :, :end]}
            pieces.append(attend(subject, backend, **piece, query_position=form(start)))
            start = end
        chunked = tuple(torch.cat(parts, dim=2) for parts in zip(*pieces, strict=True))
        assert_equal(chunked, whole)
        assert_equal(gradients(chunked, arrays), gradients_of_whole)


def replace_causal(subject: Subject, **changes: Any) -> Subject:
    subject.setting = replace(subject.setting, is_causal=True, **changes)
    return subject


# Batches: documents packed, padded, or apart.


@every_backend
@every_free_module
def test_packed_documents_are_separate_ones(name: str, backend: str, rng: np.random.Generator) -> None:
    """Segments, with positions that run on or that begin again in every document."""
    lengths = [3, 1, 5, 2]
    subject = self_attention(name, rng, length=sum(lengths))
    apart = [
        attend(subject, backend, **{side: subject.arrays[side][:, :, end - n : end] for side in INPUTS})
        for n, end in zip(lengths, np.cumsum(lengths).tolist(), strict=True)
    ]
    separate = tuple(torch.cat(parts, dim=2) for parts in zip(*apart, strict=True))
    arrays = list(subject.arrays.values())
    gradients_of_separate = gradients(separate, arrays)
    ids = torch.repeat_interleave(torch.tensor([4, 0, 7, 2]), torch.tensor(lengths)).expand(2, -1)
    again = torch.cat([torch.arange(n) for n in lengths])
    for positions in ({}, {"query_position": again, "key_position": again}):
        packed = attend(subject, backend, segment_ids=ids, **positions)
        assert_equal(packed, separate)
        assert_equal(gradients(packed, arrays), gradients_of_separate)


@every_backend
@every_free_module
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_sequences_are_unpadded_ones(name: str, backend: str, side: str, rng: np.random.Generator) -> None:
    subject = self_attention(name, rng, length=9)
    pads = [0, 4]
    places = [slice(pad, 9) if side == "left" else slice(0, 9 - pad) for pad in pads]
    keep = torch.zeros(2, 9, dtype=torch.bool)
    for row, place in enumerate(places):
        keep[row, place] = True
    padded = attend(subject, backend, key_mask=keep)
    for row, place in enumerate(places):
        alone = attend(subject, backend, **{x: subject.arrays[x][row : row + 1, :, place] for x in INPUTS})
        assert_equal(tuple(answer[row : row + 1, :, place] for answer in padded), alone)


# Heads and operands have no order of their own.


def permuted(name: str, array: Tensor, order: Tensor) -> Tensor:
    """A parameter with its heads in another order; one table for all heads stays."""
    kind, heads = name.split(".", 1)[-1], len(order)
    if kind == "bias" and "." in name:  # T5's [num_buckets, num_heads]
        return array[:, order]
    if kind == "relative_embeddings" and array.dim() == 2:  # the heads come with the projections
        return array
    if kind.split(".")[0] in ("linear_pos", "pos_key_proj", "pos_query_proj"):
        return array.unflatten(0, (heads, -1))[order].flatten(0, 1)
    if name == "attn_mask" or array.dim() == 4:
        return array if array.shape[1] == 1 else array[:, order]
    return array if array.shape[0] == 1 else array[order]


@every_backend
@pytest.mark.parametrize("name", [name for name in CASES if not any(by in name for by in BY_PLACE)])
def test_permuted_heads(name: str, backend: str, rng: np.random.Generator) -> None:
    """Every head computes for itself."""
    subject = draw(name, rng)
    heads = subject.setting.num_heads
    changes = {"num_kv_heads": heads}
    if subject.setting.has_boolean_mask:
        changes["attn_mask"] = None
    subject = make_subject(CASES[name], replace(subject.setting, **changes))
    order = torch.from_numpy(rng.permutation(heads))
    before = attend(subject, backend)
    with torch.no_grad():
        for array_name, array in subject.arrays.items():
            array.copy_(permuted(array_name, array.clone(), order))
    after = attend(subject, backend)
    assert_equal(after, tuple(answer[:, order] for answer in before))


@every_backend
@pytest.mark.parametrize("name", [n for n in MODULES if len(CASES[n].parts(Setting(1, 1, 1, 1, 1, 2, 2))) > 1])
def test_sums_have_no_order(name: str, backend: str, rng: np.random.Generator) -> None:
    subject = draw(name, rng)
    modules = [part.module for part in subject.parts]
    turned = reduce(add, modules[::-1])
    assert_equal(attend(subject, backend, encoding=turned), attend(subject, backend))


@every_backend
def test_relative_keys_meet_the_query_as_the_caller_gave_it(backend: str, rng: np.random.Generator) -> None:
    """ScoreTerms without a relative_query: r is the call's own query, also where q is rewritten."""
    query, key, other = (torch.randn(1, 2, 4, 4, dtype=torch.float64) for _ in range(3))
    table = OffsetTable(torch.randn(1, 7, 4, dtype=torch.float64), -3)
    silent = relative_attention(query, key, key, encoding=ScoreTerms(query=other, relative_keys=table), backend=backend)
    explicit = ScoreTerms(query=other, relative_query=query, relative_keys=table)
    wrong = ScoreTerms(query=other, relative_query=other, relative_keys=table)
    assert_equal(silent, relative_attention(query, key, key, encoding=explicit, backend=backend))
    assert (silent - relative_attention(query, key, key, encoding=wrong, backend=backend)).abs().max() > 1e-3


# Pieces: attention over parts of the keys, put together by their lse.


@every_backend
@pytest.mark.parametrize("name", [name for name in CASES if name not in TIED_TO_THE_LENGTH])
def test_two_halves_of_the_keys_merge_by_lse(name: str, backend: str, rng: np.random.Generator) -> None:
    """Answers and gradients, also where one half has nothing for a query, or both have."""
    for _ in range(3):
        subject = draw(name, rng)
        call = subject.arguments()
        length = call["key"].shape[2]
        if isinstance(call["encoding"], ScoreTerms) and call["encoding"].key is not None:
            continue  # keys rewritten by hand would have to be cut by hand
        middle = int(rng.integers(0, length + 1))
        whole = attend(subject, backend)
        halves = [attend(subject, backend, **part_of_keys(call, *ends)) for ends in ((0, middle), (middle, length))]
        merged = merge(*halves)
        assert_equal(merged, whole)
        arrays = list(subject.arrays.values())
        assert_equal(gradients(merged, arrays), gradients(whole, arrays))


def part_of_keys(call: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    """The arguments that belong to keys start..end."""
    position = call["key_position"]
    changes = {
        "key": call["key"][:, :, start:end],
        "value": call["value"][:, :, start:end],
        "key_position": position[..., start:end] if np.ndim(position) else position + start,
    }
    if call["key_mask"] is not None:
        changes["key_mask"] = call["key_mask"][:, start:end]
    if call["segment_ids"] is not None:
        ids = call["segment_ids"]
        query_ids, key_ids = ids if isinstance(ids, tuple) else (ids, ids)
        changes["segment_ids"] = query_ids, key_ids[:, start:end]
    mask = call["attn_mask"]
    if mask is not None and mask.shape[-1] > 1:
        changes["attn_mask"] = mask[..., start:end]
    return changes


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """exp(lse_a) O_a + exp(lse_b) O_b over their sum; what has lse -inf has no part."""
    dead = torch.isinf(a[1]) & torch.isinf(b[1])
    lses = [lse.masked_fill(dead, 0.0) for _, lse in (a, b)]
    lse = torch.logaddexp(*lses)
    shares = [torch.exp(one - lse).masked_fill(dead, 0.0).unsqueeze(-1) for one in lses]
    return shares[0] * a[0] + shares[1] * b[0], lse.masked_fill(dead, -torch.inf)


@every_case
def test_attention_weights_give_the_output(name: str, rng: np.random.Generator) -> None:
    """Where nothing is added to the values, the output is weights @ values; every live row of weights sums to 1."""
    subject = draw(name, rng)
    weights = attention_weights(**subject.arguments())
    output, lse = attend(subject)
    assert_equal(weights.sum(-1), torch.isfinite(lse).to(weights.dtype))
    if not any(array_name.endswith("relative_values") for array_name in subject.arrays):
        groups = subject.setting.num_heads // subject.setting.num_kv_heads
        assert_equal(weights @ subject.arrays["value"].repeat_interleave(groups, dim=1), output)
