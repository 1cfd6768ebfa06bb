"""The complex step is right: against analysis, and against coarse finite differences."""

import numpy as np
import pytest

from tests.oracle import ORACLES, Table, Terms, complex_step_gradients, directional_derivative, raw_terms
from tests.oracle.cases import CLOSE, DV, HQ, LK, LQ, B, D, function_of_arrays, make_case, make_inputs
from tests.oracle.equation import softmax_attention
from tests.oracle.gradient import CHUNK


def test_complex_step_equals_the_softmax_s_analytic_gradient(rng):
    scores, cotangent = rng.standard_normal((2, 1, 1, 2, 5))
    allowed = np.array([1, 1, 0, 1, 1], dtype=bool)
    value = np.eye(5)[None, None]  # the output is the weights

    def function(arrays):
        return softmax_attention(arrays["scores"], allowed, value)

    gradient = complex_step_gradients(function, {"scores": scores}, cotangent)["scores"]
    p = np.where(allowed, np.exp(scores), 0.0)
    p /= p.sum(-1, keepdims=True)
    expected = p * (cotangent - (p * cotangent).sum(-1, keepdims=True))
    np.testing.assert_allclose(gradient, expected, **CLOSE)
    of_lse = complex_step_gradients(function, {"scores": scores}, (None, np.ones((1, 1, 2))))["scores"]
    np.testing.assert_allclose(of_lse, p, **CLOSE)


def test_complex_step_covers_every_element_of_arrays_longer_than_a_chunk(rng):
    array, weight = rng.standard_normal((2, CHUNK + 3))
    gradient = complex_step_gradients(lambda arrays: (arrays["x"] ** 2 * weight).sum(-1), {"x": array}, np.ones(()))
    np.testing.assert_allclose(gradient["x"], 2 * array * weight, **CLOSE)


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_complex_step_equals_finite_differences_for_every_array(rng, name):
    parameters, settings, keywords = make_case(name, rng)
    parameters = dict(parameters)
    mask = rng.standard_normal((B, HQ, LQ, LK))
    key_position = np.stack([np.arange(LK) - 1, np.arange(LK)[::-1]])
    positions = {} if name == "music_transformer" else {"key_position": key_position}
    arrays = dict(zip(("query", "key", "value"), make_inputs(rng), strict=True)) | parameters | {"mask": mask}

    def function(arrays):
        own = function_of_arrays(name, parameters, attn_mask=arrays["mask"], **settings, **keywords, **positions)
        return own(arrays)

    cotangents = rng.standard_normal((B, HQ, LQ, DV)), rng.standard_normal((B, HQ, LQ))

    def objective(arrays):
        return sum((one * other).sum() for one, other in zip(cotangents, function(arrays), strict=False))

    gradients = complex_step_gradients(function, arrays, cotangents)
    h = 1e-5  # truncation h^2 = 1e-10, rounding eps / h = 1e-11, each times derivatives and values of size up to ~1e3
    for one, array in arrays.items():
        direction = rng.standard_normal(array.shape)
        ahead, behind = ({**arrays, one: array + step * direction} for step in (h, -h))
        difference = (objective(ahead) - objective(behind)) / (2 * h)
        assert gradients[one].shape == array.shape
        assert abs((gradients[one] * direction).sum() - difference) < 1e-6, one
        exact = directional_derivative(function, arrays, {one: direction}, cotangents)
        np.testing.assert_allclose((gradients[one] * direction).sum(), exact, rtol=1e-12, atol=1e-12)


def test_complex_step_differentiates_every_table_of_the_equation(rng):
    normal = rng.standard_normal
    arrays = dict(zip(("query", "key", "value"), make_inputs(rng), strict=True))
    arrays |= {"r": normal((B, HQ, LQ, 2)), "rk": normal((1, 4, 2)), "rq": normal((HQ, 3, D))}
    arrays |= {"rv": normal((HQ, 4, DV)), "b": normal((1, 3))}

    def function(arrays):
        terms = Terms(
            relative_query=arrays["r"],
            relative_keys=Table(arrays["rk"], -2, "zero"),
            relative_queries=Table(arrays["rq"], -1, "clamp"),
            relative_values=Table(arrays["rv"], -1, "zero"),
            bias=Table(arrays["b"], -1, "clamp"),
        )
        return raw_terms((arrays["query"], arrays["key"], arrays["value"]), terms, is_causal=True, query_position=1)

    cotangents = normal((B, HQ, LQ, DV)), normal((B, HQ, LQ))
    gradients = complex_step_gradients(function, arrays, cotangents)
    directions = {name: normal(array.shape) for name, array in arrays.items()}
    exact = directional_derivative(function, arrays, directions, cotangents)
    total = sum((gradients[name] * directions[name]).sum() for name in arrays)
    np.testing.assert_allclose(total, exact, rtol=1e-12, atol=1e-12)
    h = 1e-5
    ahead, behind = (
        sum((c * out).sum() for c, out in zip(cotangents, function(moved), strict=False))
        for moved in ({n: a + step * directions[n] for n, a in arrays.items()} for step in (h, -h))
    )
    assert abs((ahead - behind) / (2 * h) - exact) < 1e-6
    assert all(np.abs(gradient).max() > 1e-3 for gradient in gradients.values())
