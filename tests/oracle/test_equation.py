"""The plain definition of attention, its masks, sums of encodings, and the unified equation by loops."""

import math

import numpy as np
import pytest

from tests.oracle import ORACLES, Table, Terms, complex_step_gradients, raw_terms, sum_of_encodings
from tests.oracle.alibi import slopes
from tests.oracle.cases import CLOSE, EPS, HK, HQ, LK, LQ, B, D, function_of_arrays, make_case, make_inputs
from tests.oracle.equation import rows, softmax_attention
from tests.oracle.pairs import allowed_pairs, make_pairs
from tests.oracle.rope import rotate
from tests.oracle.t5 import relative_position_bucket
from tests.oracle.transformer_xl import sinusoid


def test_plain_attention_equals_scalar_arithmetic(rng):
    query, key, value = make_inputs(rng)
    answer = ORACLES["none"]((query, key, value), {}, scale=0.3)
    for b, h, i in np.ndindex(B, HQ, LQ):
        kv = h // (HQ // HK)
        exponentials = [math.exp(0.3 * float(np.dot(query[b, h, i], key[b, kv, j]))) for j in range(LK)]
        total = math.fsum(exponentials)
        expected = sum(exponentials[j] / total * value[b, kv, j] for j in range(LK))
        np.testing.assert_allclose(answer.output[b, h, i], expected, **CLOSE)
        np.testing.assert_allclose(answer.lse[b, h, i], math.log(total), **CLOSE)
        np.testing.assert_allclose(answer.weights[b, h, i], np.array(exponentials) / total, **CLOSE)


def test_default_scale_is_one_over_root_of_head_dim(rng):
    inputs = make_inputs(rng)
    np.testing.assert_array_equal(
        ORACLES["none"](inputs, {}).output, ORACLES["none"](inputs, {}, scale=1 / math.sqrt(D)).output
    )


def test_large_scores_do_not_overflow():
    scores = np.array([[[[1e4, 1e4 - math.log(3.0)]]]])
    answer = softmax_attention(scores, np.ones((1, 1, 1, 2), dtype=bool), np.array([[[[4.0], [8.0]]]]))
    # 1e4 itself carries an error of 1e4 * eps into the difference of the two scores.
    np.testing.assert_allclose(answer.output, [[[[5.0]]]], rtol=1e4 * EPS)
    np.testing.assert_allclose(answer.lse, [[[1e4 + math.log(4 / 3)]]], rtol=EPS)


@pytest.mark.parametrize("dead", ["key_mask", "float mask", "causal", "segments", "bool mask", "window"])
def test_dead_row_gives_zero_and_minus_infinity_and_no_gradient(rng, dead):
    inputs = make_inputs(rng)
    everything = np.ones((B, 1, LQ, LK), dtype=bool)
    shut = everything.copy()
    shut[:, :, 0] = False
    segments = np.zeros((B, LQ), dtype=int), np.zeros((B, LK), dtype=int)
    segments[0][:, 0] = 1
    keywords = {
        "key_mask": {"key_mask": np.zeros((B, LK), dtype=bool)},
        "float mask": {"attn_mask": np.where(shut, 0.0, -np.inf)},
        "bool mask": {"attn_mask": shut},
        "causal": {"is_causal": True, "key_position": 1},
        "segments": {"segment_ids": segments},
        "window": {"window": (0, 0), "key_position": 1},
    }[dead]
    parameters, settings, _ = make_case("shaw", rng)
    function = function_of_arrays("shaw", parameters, **settings, **keywords)
    arrays = dict(zip(("query", "key", "value"), inputs, strict=True)) | parameters
    answer = function(arrays)
    assert (answer.output[:, :, 0] == 0).all()
    assert (answer.lse[:, :, 0] == -np.inf).all()
    assert (answer.weights[:, :, 0] == 0).all()
    if dead != "key_mask":
        assert np.isfinite(answer.lse[:, :, 1]).all()
    gradients = complex_step_gradients(function, arrays, (np.ones_like(answer.output), np.ones_like(answer.lse)))
    assert (gradients["query"][:, :, 0] == 0).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def test_offsets_are_key_minus_query_position():
    pairs = make_pairs(2, 3, query_position=5, key_position=np.array([[0, 1, 2], [10, 4, 4]]))
    np.testing.assert_array_equal(pairs.offset, [[[-5, -4, -3], [-6, -5, -4]], [[5, -1, -1], [4, -2, -2]]])


def test_causal_and_window_compare_positions():
    visible = make_pairs(3, 4, query_position=1, is_causal=True).visible
    np.testing.assert_array_equal(visible[0], [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    visible = make_pairs(3, 4, query_position=1, window=(1, 0)).visible
    np.testing.assert_array_equal(visible[0], [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    visible = make_pairs(3, 4, window=(None, 1)).visible
    np.testing.assert_array_equal(visible[0], [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    visible = make_pairs(3, 4, window=(0, None)).visible
    np.testing.assert_array_equal(visible[0], [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]])


def test_default_starts_make_causality_start_aligned():
    np.testing.assert_array_equal(make_pairs(2, 4, is_causal=True).visible[0], [[1, 0, 0, 0], [1, 1, 0, 0]])


def test_masks_combine():
    pairs = make_pairs(2, 3, is_causal=True, query_position=1)
    key_mask = np.array([[0, 1, 1]])
    segments = np.array([[7, 8]]), np.array([[7, 7, 8]])
    np.testing.assert_array_equal(allowed_pairs(pairs, key_mask=key_mask)[0, 0], [[0, 1, 0], [0, 1, 1]])
    np.testing.assert_array_equal(allowed_pairs(pairs, segment_ids=segments)[0, 0], [[1, 1, 0], [0, 0, 1]])
    attn_mask = np.array([[True, False, True], [False, True, True]])
    np.testing.assert_array_equal(allowed_pairs(pairs, attn_mask=attn_mask)[0, 0], [[1, 0, 0], [0, 1, 1]])
    additive = np.where(attn_mask, 3.0, -np.inf)
    np.testing.assert_array_equal(allowed_pairs(pairs, attn_mask=additive)[0, 0], [[1, 0, 0], [0, 1, 1]])
    square = make_pairs(3, 3)
    same = allowed_pairs(square, segment_ids=np.array([[0, 0, 1]]))
    np.testing.assert_array_equal(same[0, 0], [[1, 1, 0], [1, 1, 0], [0, 0, 1]])


def test_float_mask_is_added_after_the_scale(rng):
    inputs = make_inputs(rng)
    mask = rng.standard_normal((B, HQ, LQ, LK))
    with_mask = ORACLES["none"](inputs, {}, scale=0.5, attn_mask=mask)
    plain = ORACLES["none"](inputs, {}, scale=0.5)
    odds = np.exp(mask) * plain.weights
    np.testing.assert_allclose(with_mask.weights, odds / odds.sum(-1, keepdims=True), **CLOSE)


def test_sum_of_shaw_alibi_and_rope_adds_scores_pair_by_pair(rng):
    query, key, _ = inputs = make_inputs(rng)
    table = rng.standard_normal((1, 5, D))
    parts = [("rope", {}, {}), ("shaw", {"relative_keys": table}, {"max_distance": 2}), ("alibi", {}, {})]
    answer = sum_of_encodings(inputs, parts, scale=0.4)
    position = np.arange(LK)[None]
    q, k = rotate(query, position[:, :LQ]), rotate(np.repeat(key, 2, axis=1), position)
    scores = np.empty((B, HQ, LQ, LK))
    for i, j in np.ndindex(LQ, LK):
        inner = (q[:, :, i] * k[:, :, j]).sum(-1) + query[:, :, i] @ table[0, min(max(j - i, -2), 2) + 2]
        scores[:, :, i, j] = 0.4 * inner - np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256]) * abs(j - i)
    np.testing.assert_allclose(answer.lse, np.log(np.exp(scores).sum(-1)), **CLOSE)


@pytest.mark.parametrize("name", ["shaw", "transformer_xl", "t5", "alibi", "rope"])
def test_each_paper_lowers_to_the_equation_as_the_design_says(rng, name):
    query, key, _ = inputs = make_inputs(rng)
    parameters, settings, _ = make_case(name, rng)
    keywords = {"query_position": 2, "key_position": 1, "window": (4, 3), "scale": 0.3}
    offsets = np.arange(-6, 7)
    if name == "shaw":
        tables = {one: Table(parameters[one], first=-2) for one in parameters}
        terms = Terms(relative_keys=tables["relative_keys"], relative_values=tables["relative_values"])
    elif name == "transformer_xl":
        u, v = parameters["pos_bias_u"][:, None], parameters["pos_bias_v"][:, None]
        projected = sinusoid(-offsets, 8, interleaved=True) @ parameters["linear_pos.weight"].T
        table = Table(np.swapaxes(projected.reshape(-1, HQ, D), 0, 1), first=-6, beyond="error")
        terms = Terms(query=query + u, relative_query=query + v, relative_keys=table)
    elif name == "t5":
        buckets = relative_position_bucket(offsets, 8, 6)
        terms = Terms(bias=Table(parameters["bias"][buckets].T, first=-6, beyond="error"))
    elif name == "alibi":
        terms = Terms(bias=Table(-slopes(HQ)[:, None] * np.abs(offsets), first=-6, beyond="error"))
    else:
        turned = rotate(query, 2 + np.arange(LQ)[None], **settings), rotate(key, 1 + np.arange(LK)[None], **settings)
        terms = Terms(query=turned[0], key=turned[1])
    paper = ORACLES[name](inputs, parameters, **settings, **keywords)
    equation = raw_terms(inputs, terms, **keywords)
    for one, other in zip(paper, equation, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


def test_equation_s_relative_queries_are_scored_against_the_key(rng):
    query, key, _ = inputs = make_inputs(rng)
    table = Table(rng.standard_normal((1, 5, D)), first=-1, beyond="zero")
    answer = raw_terms(inputs, Terms(relative_queries=table), scale=0.3)
    scores = np.empty((B, HQ, LQ, LK))
    for b, h, i, j in np.ndindex(B, HQ, LQ, LK):
        row = table.values[0, j - i + 1] if -1 <= j - i <= 3 else np.zeros(D)
        scores[b, h, i, j] = 0.3 * (query[b, h, i] + row) @ key[b, h // 2, j]
    np.testing.assert_allclose(answer.lse, np.log(np.exp(scores).sum(-1)), **CLOSE)


def test_equation_refuses_only_visible_offsets_beyond_a_table(rng):
    inputs = make_inputs(rng)
    terms = Terms(bias=Table(rng.standard_normal((HQ, 3)), first=-1, beyond="error"))
    with pytest.raises(ValueError, match="visible offset 2 lies outside"):
        raw_terms(inputs, terms, window=(1, 2))
    raw_terms(inputs, terms, window=(1, 1))


def test_explicit_positions_equal_starts_and_follow_a_permutation_of_the_keys(rng):
    query, key, value = make_inputs(rng)
    parameters, settings, _ = make_case("shaw", rng)
    keywords = {**settings, "is_causal": True}
    starts = ORACLES["shaw"]((query, key, value), parameters, query_position=2, key_position=1, **keywords)
    order = rng.permutation(LK)
    explicit = ORACLES["shaw"](
        (query, key[:, :, order], value[:, :, order]),
        parameters,
        query_position=np.broadcast_to(2 + np.arange(LQ), (B, LQ)),
        key_position=1 + order,
        **keywords,
    )
    np.testing.assert_allclose(explicit.output, starts.output, **CLOSE)


def test_rows_reads_the_head_s_own_row():
    table = np.arange(2 * 3).reshape(2, 3, 1)
    np.testing.assert_array_equal(rows(table, np.array([[[2, 0]]]))[..., 0], [[[[2, 0]], [[5, 3]]]])
