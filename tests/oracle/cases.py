"""What the tests of the oracles share: sizes, inputs, and a case that exercises each oracle with all it has."""

from typing import Any

from tests.oracle import ORACLES

B, HQ, HK, LQ, LK, D, DV = 2, 4, 2, 5, 7, 6, 3
EPS = 2.0**-52
# Numbers of size ~10 after some hundred operations, counted as if every rounding went the same way.
CLOSE: dict[str, Any] = {"rtol": 1000 * EPS, "atol": 1000 * EPS}


def make_inputs(rng, query_length=LQ, key_length=LK):
    """(query, key, value) of grouped heads."""
    query = rng.standard_normal((B, HQ, query_length, D))
    key = rng.standard_normal((B, HK, key_length, D))
    value = rng.standard_normal((B, HK, key_length, DV))
    return query, key, value


def make_case(name, rng) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(parameters, settings, keywords) that exercise an oracle with all it has."""
    normal = rng.standard_normal
    if name == "shaw":
        tables = {"relative_keys": normal((1, 4, D)), "relative_values": normal((HQ, 4, DV))}
        return tables, {"max_distance": (2, 1)}, {}
    if name == "music_transformer":
        return {"relative_keys": normal((HQ, 8, D))}, {}, {"is_causal": True}
    if name == "generalised":
        return {"relative_keys": normal((HQ, 5, D))}, {"beyond": "clamp"}, {}
    if name == "transformer_xl":
        biases = {"pos_bias_u": normal((HQ, D)), "pos_bias_v": normal((HQ, D))}
        return {"linear_pos.weight": normal((HQ * D, 8)), **biases}, {"interleaved": True}, {}
    if name == "t5":
        return {"bias": normal((8, HQ))}, {"max_distance": 6}, {}
    if name == "disentangled":
        sides = {f"pos_{side}_proj.{part}": normal(shape) for side in ("key", "query") for part, shape in (
            ("weight", (HQ * D, 5)), ("bias", (HQ * D,))
        )}  # fmt: skip
        return {"relative_embeddings": normal((8, 5)), **sides}, {"max_distance": 6}, {}
    if name == "key_query":
        return {"relative_embeddings": normal((1, 2 * LK - 1, D))}, {}, {}
    if name == "kerple":
        return {one: rng.uniform(0.1, 1.9, HQ) for one in ("r1", "r2")}, {"kind": "power"}, {}
    if name == "sandwich":
        return {}, {"width": 6}, {}
    if name == "function":
        first = {"function.first.weight": normal((3, 1)), "function.first.bias": normal(3)}
        return {**first, "function.last.weight": normal((HQ, 3)), "function.last.bias": normal(HQ)}, {}, {}
    if name == "rope":
        return {}, {"rotary_dim": 4, "factor": 2.0, "base": 100.0}, {}
    return {}, {}, {}


def function_of_arrays(name, parameters, **keywords):
    """The oracle as a function of {array name: array}."""

    def function(arrays):
        inputs = arrays["query"], arrays["key"], arrays["value"]
        return ORACLES[name](inputs, {one: arrays[one] for one in parameters}, **keywords)

    return function
