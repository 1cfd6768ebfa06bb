"""Each paper's oracle is right: held to a fact that does not come from it."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest

from tests.oracle import ORACLES, OnAxis, sum_of_encodings
from tests.oracle.alibi import slopes
from tests.oracle.cases import CLOSE, DV, EPS, HK, HQ, LK, LQ, B, D, make_inputs
from tests.oracle.music_transformer import skew
from tests.oracle.rope import rotate
from tests.oracle.t5 import relative_position_bucket
from tests.oracle.transformer_xl import sinusoid


def test_oracles_import_neither_relattn_nor_torch():
    for path in (Path(__file__).parent / "oracle").glob("*.py"):
        if path.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in {"numpy", "typing", "collections", "math", "tests"}, f"{path}: {name}"


def test_shaw_reads_the_paper_s_figure_1(rng):
    """Figure 1: a_(2,1) = w_-1, a_(2,4) = w_2, a_(4,n) = w_k for n far to the right, and w_-k far to the left."""
    k, length = 3, 12
    w = np.arange(-k, k + 1, dtype=float)[None, :, None]  # each row holds its own index
    query = np.ones((1, 1, length, 1))
    inputs = query, np.zeros((1, 1, length, 1)), np.zeros((1, 1, length, 1))
    answer = ORACLES["shaw"](inputs, {"relative_keys": w, "relative_values": w}, max_distance=k, scale=1.0)
    log_weights = np.log(answer.weights[0, 0])  # up to a constant in each row these are the a^K_ij

    def difference(i, j, other):
        return log_weights[i - 1, j - 1] - log_weights[i - 1, other - 1]

    np.testing.assert_allclose(difference(2, 4, 1), 2 - (-1), **CLOSE)
    np.testing.assert_allclose(difference(4, 12, 4), k - 0, **CLOSE)
    np.testing.assert_allclose(difference(12, 1, 12), -k - 0, **CLOSE)
    expected = sum(answer.weights[0, 0, 3, j] * min(max(j - 3, -k), k) for j in range(length))
    np.testing.assert_allclose(answer.output[0, 0, 3, 0], expected, **CLOSE)


def test_shaw_equals_equations_3_and_4_pair_by_pair(rng):
    query, key, value = inputs = make_inputs(rng)
    left, right = 2, 1
    w_k, w_v = rng.standard_normal((1, 4, D)), rng.standard_normal((HQ, 4, DV))
    answer = ORACLES["shaw"](inputs, {"relative_keys": w_k, "relative_values": w_v}, max_distance=(left, right))
    for b, h, i in np.ndindex(B, HQ, LQ):
        kv = h // (HQ // HK)
        index = [min(max(j - i, -left), right) + left for j in range(LK)]
        e = np.array([query[b, h, i] @ (key[b, kv, j] + w_k[0, index[j]]) / math.sqrt(D) for j in range(LK)])
        alpha = np.exp(e) / np.exp(e).sum()
        z = sum(alpha[j] * (value[b, kv, j] + w_v[h, index[j]]) for j in range(LK))
        np.testing.assert_allclose(answer.output[b, h, i], z, **CLOSE)
        np.testing.assert_allclose(answer.lse[b, h, i], math.log(np.exp(e).sum()), **CLOSE)


def test_huang_skew_equals_the_definition_below_the_diagonal(rng):
    length = 6
    query, embedding = rng.standard_normal((B, HQ, length, D)), rng.standard_normal((HQ, length, D))
    skewed = skew(query @ np.swapaxes(embedding, -1, -2))
    for i in range(length):
        for j in range(i + 1):
            row = embedding[:, length - 1 + (j - i)]
            np.testing.assert_allclose(skewed[..., i, j], (query[..., i, :] * row).sum(-1), **CLOSE)


def test_music_transformer_equals_its_skewed_formula(rng):
    length = 6
    query, key, value = inputs = make_inputs(rng, length, length)
    embedding = rng.standard_normal((HQ, length, D))
    s_rel = skew(query @ np.swapaxes(embedding, -1, -2))
    logits = (query @ np.swapaxes(np.repeat(key, 2, axis=1), -1, -2) + s_rel) / math.sqrt(D)
    exponentials = np.tril(np.exp(logits))
    expected = exponentials / exponentials.sum(-1, keepdims=True) @ np.repeat(value, 2, axis=1)
    answer = ORACLES["music_transformer"](inputs, {"relative_keys": embedding}, is_causal=True)
    np.testing.assert_allclose(answer.output, expected, **CLOSE)


def test_music_transformer_of_a_longer_table_reads_its_last_rows(rng):
    inputs = make_inputs(rng, 4, 4)
    embedding = rng.standard_normal((1, 9, D))
    long = ORACLES["music_transformer"](inputs, {"relative_keys": embedding}, is_causal=True)
    short = ORACLES["music_transformer"](inputs, {"relative_keys": embedding[:, -4:]}, is_causal=True)
    np.testing.assert_array_equal(long.output, short.output)


def test_generalised_equals_music_transformer_where_causal(rng):
    inputs = make_inputs(rng, 6, 6)
    future = rng.standard_normal((HQ, 5, D))
    past = rng.standard_normal((HQ, 6, D))
    paper = ORACLES["music_transformer"](inputs, {"relative_keys": past}, is_causal=True)
    both_sides = {"relative_keys": np.concatenate([past, future], axis=1)}
    np.testing.assert_array_equal(ORACLES["generalised"](inputs, both_sides, is_causal=True).output, paper.output)
    one_side = ORACLES["generalised"](inputs, {"relative_keys": past}, causal=True, is_causal=True)
    np.testing.assert_array_equal(one_side.output, paper.output)


def test_generalised_puts_row_m_on_one_diagonal(rng):
    """S_rel filled diagonal by diagonal: offset d holds q_i . E_d at (i, i + d), from the lower left corner upwards."""
    query, key, value = make_inputs(rng)
    length = max(LQ, LK)
    embedding = rng.standard_normal((HQ, 2 * length - 1, D))
    s_rel = np.zeros((B, HQ, LQ, LK))
    for d in range(-(LQ - 1), LK):
        for i in range(max(0, -d), min(LQ, LK - d)):
            s_rel[:, :, i, i + d] = (query[:, :, i] * embedding[:, d + length - 1]).sum(-1)
    answer = ORACLES["generalised"]((query, np.zeros_like(key), value), {"relative_keys": embedding}, scale=1.0)
    exponentials = np.exp(s_rel)
    np.testing.assert_allclose(answer.weights, exponentials / exponentials.sum(-1, keepdims=True), **CLOSE)


def test_generalised_beyond_the_table(rng):
    inputs = make_inputs(rng)
    table = rng.standard_normal((1, 5, D))  # offsets -2..2
    clamped = ORACLES["generalised"](inputs, {"relative_keys": table}, beyond="clamp")
    shaw = ORACLES["shaw"](inputs, {"relative_keys": table}, max_distance=2)
    np.testing.assert_array_equal(clamped.output, shaw.output)
    padding = np.zeros((1, 4, D))
    zeroed = ORACLES["generalised"](inputs, {"relative_keys": table}, beyond="zero")
    padded = ORACLES["generalised"](inputs, {"relative_keys": np.concatenate([padding, table, padding], axis=1)})
    np.testing.assert_array_equal(zeroed.output, padded.output)
    with pytest.raises(ValueError, match="visible offset"):
        ORACLES["generalised"](inputs, {"relative_keys": table})
    windowed = ORACLES["generalised"](inputs, {"relative_keys": table}, window=(2, 2))  # only visible offsets count
    np.testing.assert_array_equal(
        windowed.output, ORACLES["shaw"](inputs, {"relative_keys": table}, max_distance=2, window=(2, 2)).output
    )


def test_transformer_xl_sinusoids_in_both_layouts():
    sines_first = sinusoid(np.array([0, 1, -3]), 4, interleaved=False)
    expected = [
        [0.0, 0.0, 1.0, 1.0],
        [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)],
        [math.sin(-3), math.sin(-0.03), math.cos(3), math.cos(0.03)],
    ]
    np.testing.assert_allclose(sines_first, expected, rtol=0, atol=4 * EPS)
    interleaved = sinusoid(np.array([0, 1, -3]), 4, interleaved=True)
    np.testing.assert_array_equal(interleaved, sines_first[:, [0, 2, 1, 3]])


def test_transformer_xl_regroups_into_q_plus_u_and_q_plus_v(rng):
    """(a) + (c) = (q_i + u) . k_j and (b) + (d) = (q_i + v) . W_kR R_(i-j), as the paper's appendix B computes them."""
    query, key, value = inputs = make_inputs(rng)
    u, v = rng.standard_normal((2, HQ, D))
    w_kr = rng.standard_normal((HQ * D, 8))
    start = 3
    parameters = {"linear_pos.weight": w_kr, "pos_bias_u": u, "pos_bias_v": v}
    answer = ORACLES["transformer_xl"](inputs, parameters, scale=0.2, query_position=start)
    inverse_frequency = [1 / 10000 ** (t / 8) for t in (0, 2, 4, 6)]
    for b, h, i in np.ndindex(B, HQ, LQ):
        scores = np.empty(LK)
        for j in range(LK):
            distance = start + i - j
            r = [math.sin(distance * f) for f in inverse_frequency] + [
                math.cos(distance * f) for f in inverse_frequency
            ]
            projected = w_kr[h * D : (h + 1) * D] @ np.array(r)
            scores[j] = 0.2 * ((query[b, h, i] + u[h]) @ key[b, h // 2, j] + (query[b, h, i] + v[h]) @ projected)
        np.testing.assert_allclose(answer.lse[b, h, i], np.log(np.exp(scores).sum()), **CLOSE)
        expected = np.exp(scores) / np.exp(scores).sum() @ value[b, h // 2]
        np.testing.assert_allclose(answer.output[b, h, i], expected, **CLOSE)


def test_transformer_xl_learned_table_of_sinusoids_is_the_sinusoid(rng):
    inputs = make_inputs(rng)
    u, v = rng.standard_normal((2, HQ, D))
    w_kr = rng.standard_normal((HQ * D, D))
    offsets = np.arange(-(LK - 1), LK)
    table = np.swapaxes((sinusoid(-offsets, D, interleaved=True) @ w_kr.T).reshape(-1, HQ, D), 0, 1)
    projected = {"linear_pos.weight": w_kr, "pos_bias_u": u, "pos_bias_v": v}
    learned = {"relative_keys": table, "pos_bias_u": u, "pos_bias_v": v}
    one = ORACLES["transformer_xl"](inputs, projected, interleaved=True)
    other = ORACLES["transformer_xl"](inputs, learned)
    np.testing.assert_allclose(one.output, other.output, **CLOSE)


@pytest.mark.parametrize(
    ("bidirectional", "starts"),
    [
        # First distance of each bucket with 32 buckets and max_distance 128. Bidirectional: 8 exact ones, then
        # 8 * 2^(k/2); otherwise 16 exact ones, then 16 * 8^(k/16); both rounded up.
        (True, [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]),
        (False, [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]),
    ],
)
def test_t5_buckets_of_the_published_models(bidirectional, starts):
    distance = np.arange(1000)
    expected = np.searchsorted(starts, distance, side="right") - 1
    np.testing.assert_array_equal(relative_position_bucket(-distance, bidirectional=bidirectional), expected)
    future = np.where(distance > 0, expected + 16, 0) if bidirectional else np.zeros(1000)
    np.testing.assert_array_equal(relative_position_bucket(distance, bidirectional=bidirectional), future)


@pytest.mark.parametrize("num_buckets", [4, 10, 64])
def test_t5_last_bucket_begins_before_max_distance_and_holds_ever_after(num_buckets):
    buckets = relative_position_bucket(-np.arange(2000), num_buckets, 100, bidirectional=False)
    assert (np.diff(buckets) >= 0).all()
    assert (buckets[100:] == num_buckets - 1).all()
    assert buckets[0] == 0 and buckets.max() == num_buckets - 1


def test_t5_bias_is_not_scaled_and_reads_its_own_head(rng):
    inputs = make_inputs(rng)
    bias = rng.standard_normal((8, HQ))
    answer = ORACLES["t5"](inputs, {"bias": bias}, max_distance=20, scale=0.1, query_position=2)
    plain = ORACLES["none"](inputs, {}, scale=0.1)
    # Per direction: exact for 0 and 1; from 2 on log(n / 2) / log(10) * 2 stays below 1 until n = 6.3.
    past, future = [0, 1, 2, 2, 2, 2, 2], [None, 5, 6, 6, 6]
    expected = np.empty((HQ, LQ, LK))
    for i, j in np.ndindex(LQ, LK):
        d = j - (i + 2)
        expected[:, i, j] = bias[future[d] if d > 0 else past[-d]]
    odds = plain.weights * np.exp(expected)
    np.testing.assert_allclose(answer.weights, odds / odds.sum(-1, keepdims=True), **CLOSE)


def test_alibi_slopes_of_the_paper():
    np.testing.assert_allclose(slopes(8), [1 / 2**h for h in range(1, 9)], rtol=EPS)
    np.testing.assert_allclose(slopes(16), [2 ** (-h / 2) for h in range(1, 17)], rtol=4 * EPS)
    np.testing.assert_allclose(slopes(4), [1 / 4, 1 / 16, 1 / 64, 1 / 256], rtol=EPS)
    np.testing.assert_allclose(slopes(1), [1 / 256], rtol=EPS)


def test_alibi_slopes_of_head_counts_that_are_no_power_of_two():
    """12 heads: those of 8, then the first, third, fifth and seventh of 16."""
    half = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    np.testing.assert_allclose(slopes(12), [*(1 / 2**h for h in range(1, 9)), *half], rtol=4 * EPS)
    np.testing.assert_allclose(slopes(3), [1 / 16, 1 / 256, 1 / 4], rtol=EPS)
    assert [len(slopes(n)) for n in range(1, 40)] == list(range(1, 40))


def test_alibi_of_the_paper_s_figure_3(rng):
    """Causal row i has the biases m * [-(i-1), ..., -1, 0]; two-sided, the future is penalised like the past."""
    query, key, value = make_inputs(rng, 5, 5)
    inputs = query, np.zeros_like(key), value
    last = ORACLES["alibi"](inputs, {}, is_causal=True).weights[0, :, -1]
    m = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])
    np.testing.assert_allclose(np.log(last / last[:, -1:]), m[:, None] * np.arange(-4, 1), **CLOSE)
    middle = ORACLES["alibi"](inputs, {}).weights[0, :, 2]
    np.testing.assert_allclose(np.log(middle / middle[:, 2:3]), m[:, None] * [-2, -1, 0, -1, -2], **CLOSE)


def test_kerple_of_power_one_is_alibi(rng):
    """The paper's section on the power variant: ALiBi is -r1 |m - n|^r2 at r2 = 1."""
    inputs, m = make_inputs(rng, 5, 6), slopes(HQ)
    powers = {"r1": np.maximum(m, 0.01), "r2": np.ones(HQ)}
    expected = ORACLES["alibi"](inputs, {}, given=powers["r1"])
    for found, answer in zip(ORACLES["kerple"](inputs, powers, kind="power"), expected, strict=True):
        np.testing.assert_allclose(found, answer, **CLOSE)


def test_kerple_makes_odds_that_fall_as_a_power_of_the_distance(rng):
    """exp(-r1 log(1 + r2 p)) = (1 + r2 p)^-r1, with whole numbers for r1 and r2."""
    query, key, value = make_inputs(rng, 5, 5)
    r1, r2 = np.arange(1.0, HQ + 1), np.full(HQ, 2.0)
    weights = ORACLES["kerple"]((query, np.zeros_like(key), value), {"r1": r1, "r2": r2}).weights[0, :, 0]
    odds = np.array([[1.0 / (1 + 2 * p) ** power for p in range(5)] for power in range(1, HQ + 1)])
    np.testing.assert_allclose(weights, odds / odds.sum(-1, keepdims=True), **CLOSE)


def test_sandwich_is_a_sum_of_cosines(rng):
    """sin a sin b + cos a cos b = cos(a - b), and the ratios 2, 4, 6, 8 of four heads."""
    query, key, value = make_inputs(rng, 5, 5)
    weights = ORACLES["sandwich"]((query, np.zeros_like(key), value), {}, width=4).weights[0, :, 3]
    sums = np.array([math.cos(j - 3) + math.cos((j - 3) / 100) for j in range(5)])
    odds = np.exp(sums / (8.0 * np.arange(1, HQ + 1)[:, None] / HQ))
    np.testing.assert_allclose(weights, odds / odds.sum(-1, keepdims=True), **CLOSE)


def test_the_function_of_an_offset(rng):
    """One hidden unit, tanh(d / 4), which the heads take 1, 2, ... times."""
    query, key, value = make_inputs(rng, 4, 5)
    weights = np.arange(1.0, HQ + 1)[:, None]
    parameters = {"function.first.weight": np.ones((1, 1)), "function.first.bias": np.zeros(1)}
    parameters |= {"function.last.weight": weights, "function.last.bias": np.full(HQ, 7.0)}
    answer = ORACLES["function"]((query, np.zeros_like(key), value), parameters).weights[0, :, 2]
    odds = np.exp(weights * [math.tanh((j - 2) / 4) for j in range(5)])
    np.testing.assert_allclose(answer, odds / odds.sum(-1, keepdims=True), **CLOSE)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_turns_each_pair_by_the_rotation_matrix_of_equation_15(rng, interleaved):
    x = rng.standard_normal((1, 1, 1, 8))
    position, base, factor, rotary_dim = 5, 50.0, 2.0, 4
    turned = rotate(x, np.array([[position]]), base=base, rotary_dim=rotary_dim, interleaved=interleaved, factor=factor)
    expected = x.copy()
    for t in range(2):
        a, b = (2 * t, 2 * t + 1) if interleaved else (t, t + 2)
        angle = position / factor * base ** (-2 * t / rotary_dim)
        expected[..., a] = math.cos(angle) * x[..., a] - math.sin(angle) * x[..., b]
        expected[..., b] = math.sin(angle) * x[..., a] + math.cos(angle) * x[..., b]
    np.testing.assert_allclose(turned, expected, **CLOSE)
    np.testing.assert_array_equal(turned[..., rotary_dim:], x[..., rotary_dim:])


def test_rope_score_is_equation_16_and_depends_on_the_offset_only(rng):
    query, key, _ = inputs = make_inputs(rng)
    answer = ORACLES["rope"](inputs, {}, interleaved=True, scale=1.0)
    theta = 10000.0 ** (-np.arange(D // 2) * 2 / D)
    q, k = query[..., 0::2] + 1j * query[..., 1::2], np.repeat(key[..., 0::2] + 1j * key[..., 1::2], 2, axis=1)
    for i in range(LQ):
        scores = [(q[:, :, i] * k[:, :, j].conj() * np.exp(1j * (i - j) * theta)).real.sum(-1) for j in range(LK)]
        np.testing.assert_allclose(answer.lse[:, :, i], np.log(np.exp(scores).sum(0)), **CLOSE)
    shifted = ORACLES["rope"](inputs, {}, interleaved=True, scale=1.0, query_position=100, key_position=100)
    # An angle of 100 carries 100 roundings' worth of error into sine and cosine.
    np.testing.assert_allclose(shifted.output, answer.output, rtol=0, atol=1e5 * EPS)
    moved = ORACLES["rope"](inputs, {}, interleaved=True, scale=1.0, key_position=1)
    assert np.abs(moved.output - answer.output).max() > 1e-3


# --- on other axes


def grid_of(*sizes: int, prefix_tokens: int = 0) -> dict[str, OnAxis]:
    """Self-attention over a grid, row by row."""
    places = [np.concatenate([np.zeros(prefix_tokens, int), column.ravel()]) for column in np.indices(sizes)]
    names = ("t", "y", "x")[-len(sizes) :]
    return {n: OnAxis(place, place, (prefix_tokens, prefix_tokens)) for n, place in zip(names, places, strict=True)}


def scores_of(name, inputs, parameters, axes, **settings):
    """log weights + lse: S of every pair, at scale 1."""
    answer = sum_of_encodings(inputs, [(name, parameters, settings)], scale=1.0, axes=axes)
    return np.log(answer.weights) + answer.lse[..., None]


def silent(length: int, heads: int = 1):
    """Inputs whose q . k is 0."""
    return tuple(np.zeros((1, heads, length, 2)) for _ in range(3))


def test_swin_reads_the_rows_of_its_published_index():
    """Of a window of 2 x 2; a table that holds its own row numbers."""
    table = {"bias": np.arange(9.0)[:, None]}
    found = scores_of("grid_bias", silent(4), table, grid_of(2, 2), sizes=(2, 2))
    expected = [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    np.testing.assert_allclose(found[0, 0], expected, atol=100 * EPS)


def test_beit_s_class_token_reads_the_last_three_rows():
    """num_relative_distance - 3 in the token's own row, - 2 in its column, - 1 in the corner."""
    table = {"bias": np.arange(12.0)[:, None]}
    found = scores_of("grid_bias", silent(5), table, grid_of(2, 2, prefix_tokens=1), sizes=(2, 2), extra=3)
    np.testing.assert_allclose(found[0, 0, 0], [11, 9, 9, 9, 9], atol=100 * EPS)
    np.testing.assert_allclose(found[0, 0, :, 0], [11, 10, 10, 10, 10], atol=100 * EPS)
    np.testing.assert_allclose(found[0, 0, 1], [10, 4, 3, 1, 0], atol=100 * EPS)


def test_a_class_token_without_rows_gets_nothing():
    table = {"bias": np.arange(1.0, 10.0)[:, None]}
    found = scores_of("grid_bias", silent(5), table, grid_of(2, 2, prefix_tokens=1), sizes=(2, 2))
    assert np.abs(found[0, 0, 0]).max() < 100 * EPS and np.abs(found[0, 0, :, 0]).max() < 100 * EPS
    assert (found[0, 0, 1:, 1:] > 0.5).all()


def test_swin_v2_s_coordinates_are_1_at_the_far_corner():
    """8 (s - 1) / (s - 1) = 8, and log2(1 + 8) / log2(8) is a little above 1; 0 in the middle; query - key."""
    mlp = {"function.mlp.0.weight": np.array([[1.0, 0.0], [0.0, 1.0]]), "function.mlp.0.bias": np.zeros(2)}
    mlp |= {"function.mlp.2.weight": np.array([[1.0, 10.0]])}
    found = scores_of("log_grid", silent(6), mlp, grid_of(2, 3), sizes=(2, 3))[0, 0]
    far, near = np.log2(9.0) / 3.0, np.log2(5.0) / 3.0
    for i, j, outcome in ((0, 0, 0.0), (5, 0, 11.0 * far), (0, 5, 0.0), (3, 0, far), (1, 0, 10.0 * near)):
        np.testing.assert_allclose(found[i, j], 16.0 / (1.0 + np.exp(-outcome)), rtol=100 * EPS)


def test_decomposed_terms_are_added_unscaled_and_not_to_a_class_token(rng):
    """attn[1:, 1:] += q . Rh + q . Rw, by the published code's broadcast, for a row of 2 x 3."""
    query, key, value = (rng.standard_normal((1, 1, 7, 2)) for _ in range(3))
    tables = {f"operands.{n}.encoding.table.relative_keys": rng.standard_normal((1, s, 2)) for n, s in ((0, 3), (1, 5))}
    found = scores_of("decomposed", (query, key, value), tables, grid_of(2, 3, prefix_tokens=1))[0, 0]
    rel_h, rel_w = (table[0, ::-1] for table in tables.values())
    height, width = (np.arange(s)[:, None] - np.arange(s)[None, :] + s - 1 for s in (2, 3))
    patches = query[0, 0, 1:].reshape(2, 3, 2)
    by_row = np.einsum("hwc,hkc->hwk", patches, rel_h[height])
    by_column = np.einsum("hwc,wkc->hwk", patches, rel_w[width])
    expected = query[0, 0] @ key[0, 0].T
    expected[1:, 1:] += (by_row[:, :, :, None] + by_column[:, :, None, :]).reshape(6, 6)
    np.testing.assert_allclose(found, expected, atol=100 * EPS)


def test_pitch_and_time_of_the_sequence_s_own_positions_add_their_tables(rng):
    """Where events are as far apart in time and pitch as in the sequence, three tables are one."""
    inputs = make_inputs(rng, 5, 5)
    names = ("operands.0.relative_keys", "operands.1.encoding.relative_keys", "operands.2.encoding.relative_keys")
    tables = {name: rng.standard_normal((HQ, 9, D)) for name in names}
    axes = {axis: OnAxis(np.arange(5) + start, np.arange(5) + start) for axis, start in (("time", 3), ("pitch", -7))}
    three = sum_of_encodings(inputs, [("pitch_and_time", tables, {})], axes=axes)
    one = ORACLES["generalised"](inputs, {"relative_keys": sum(tables.values())})
    np.testing.assert_allclose(three.output, one.output, **CLOSE)


def test_a_pitch_that_falls_reads_the_other_side(rng):
    inputs = make_inputs(rng, 4, 4)
    names = ("operands.0.relative_keys", "operands.1.encoding.relative_keys", "operands.2.encoding.relative_keys")
    tables = {name: np.zeros((HQ, 7, D)) for name in names[:2]} | {names[2]: rng.standard_normal((HQ, 7, D))}
    falling = {"time": OnAxis(np.zeros(4), np.zeros(4)), "pitch": OnAxis(-np.arange(4), -np.arange(4))}
    found = sum_of_encodings(inputs, [("pitch_and_time", tables, {})], axes=falling)
    mirrored = ORACLES["generalised"](inputs, {"relative_keys": tables[names[2]][:, ::-1]})
    np.testing.assert_allclose(found.output, mirrored.output, **CLOSE)


def test_layoutlm_v3_on_one_axis_is_t5(rng):
    """Boxes that all start at the same place leave the text's order and one bucket."""
    inputs, zeros = make_inputs(rng), OnAxis(np.full(LQ, 4), np.full(LK, 4))
    tables = {"operands.0.bias": rng.standard_normal((8, HQ))}
    tables |= {f"operands.{n}.encoding.bias": np.zeros((8, HQ)) for n in (1, 2)}
    found = sum_of_encodings(
        inputs, [("layoutlm_v3", tables, {"max_distances": (6, 9, 9)})], axes={"x": zeros, "y": zeros}
    )
    expected = ORACLES["t5"](inputs, {"bias": tables["operands.0.bias"]}, max_distance=6)
    np.testing.assert_allclose(found.output, expected.output, **CLOSE)


def test_any_paper_on_an_axis_is_the_paper_at_its_positions(rng):
    inputs = make_inputs(rng)
    table = {"relative_keys": rng.standard_normal((1, 4, D)), "relative_values": rng.standard_normal((HQ, 4, DV))}
    query, key = rng.integers(-3, 4, LQ), rng.integers(-3, 4, (B, LK))
    on = [("shaw", {f"encoding.{n}": t for n, t in table.items()}, {"max_distance": (2, 1), "on": "z"})]
    found = sum_of_encodings(inputs, on, axes={"z": OnAxis(query, key)})
    expected = ORACLES["shaw"](inputs, table, max_distance=(2, 1), query_position=query, key_position=key)
    np.testing.assert_array_equal(found.output, expected.output)
