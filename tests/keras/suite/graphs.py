"""Compiled graphs: tf.function with unknown lengths, XLA, jax.jit and jax.grad, starts that only a graph knows."""

import re

import numpy as np
import pytest

import relattn.keras as rk
from relattn.errors import UnsupportedError
from tests import seeds
from tests.keras.gradients import BACKEND, numpy_of
from tests.keras.suite.layer import ENCODINGS, HEADS, SIZE, WIDTH, attention, every_encoding, normal

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def loss_and_gradient(layer, x, **call):
    """<cos, output> and its gradient by x, without a graph."""
    if BACKEND == "jax":
        import jax

        return jax.value_and_grad(lambda x: jax.numpy.sum(jax.numpy.cos(layer(x, x, **call))))(x)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.cos(layer(x, x, **call)))
        return loss, tape.gradient(loss, x)
    import torch

    x = torch.as_tensor(x).clone().requires_grad_()
    loss = layer(x, x, **call).cos().sum()
    return loss, torch.autograd.grad(loss, x)[0]


def compiled(function, jit: bool):
    """The function of x [2, L, WIDTH] as one graph for every L, or (jit) through XLA."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        signature = None if jit else [tf.TensorSpec([None, None, WIDTH]), tf.TensorSpec([], tf.int32)]
        return tf.function(function, input_signature=signature, jit_compile=jit)
    import jax

    return jax.jit(function)


@pytest.mark.skipif(BACKEND == "torch", reason="Keras has no graphs on torch")
@pytest.mark.parametrize(
    ("query_block", "jit"), [(4, False), (4, True)] if BACKEND == "tensorflow" else [(None, True), (4, True)]
)
@every_encoding
def test_a_graph_computes_what_eager_execution_does(name, query_block, jit):
    layer = attention(ENCODINGS[name](), query_block=query_block)
    layer(normal(2, 3, WIDTH), normal(2, 3, WIDTH))
    traces = []

    def step(x, start):
        traces.append(x.shape)
        return loss_and_gradient(layer, x, use_causal_mask=True, query_position=start, key_position=start)

    graph = compiled(step, jit)
    for length, start in ((5, 0), (5, 3), (1, 3)):
        x = normal(2, length, WIDTH, seed=length)
        for actual, expected in zip(graph(x, np.int32(start)), step(x, start), strict=True):
            np.testing.assert_allclose(numpy_of(actual), numpy_of(expected), **CLOSE)
    if BACKEND == "tensorflow" and not jit:
        assert [shape[1] for shape in traces].count(None) == 1, "one graph serves every length"


@pytest.mark.skipif(BACKEND == "torch", reason="Keras has no graphs on torch")
def test_a_graph_cannot_raise_and_gives_nan_beyond_the_table():
    layer = rk.RelativeEmbedding(SIZE, 6)
    layer(normal(1, HEADS, 2, SIZE))
    graph = in_graph(lambda q, start: layer(q, query_position=start))
    queries = normal(1, HEADS, 4, SIZE)
    np.testing.assert_allclose(
        numpy_of(graph(queries, np.int32(2))), numpy_of(layer(queries, query_position=2)), **CLOSE
    )
    assert np.isnan(numpy_of(graph(queries, np.int32(3)))).all()
    with pytest.raises(ValueError, match="max_length=6 reaches"):
        layer(queries, query_position=3)


@pytest.mark.skipif(BACKEND == "torch", reason="Keras has no graphs on torch")
@pytest.mark.parametrize("name", ["relative", "shaw", "t5", "rope", "key_query", "disentangled"])
def test_a_graph_takes_explicit_positions(name):
    layer = attention(ENCODINGS[name](), query_block=4)
    x = normal(2, 6, WIDTH)
    places = np.array([[0, 2, 1, 5, 3, 7], [4, 4, 0, 1, 2, 3]], dtype="int32")
    expected = numpy_of(layer(x, x, use_causal_mask=True, query_position=places, key_position=places))
    graph = in_graph(lambda x, at: layer(x, x, use_causal_mask=True, query_position=at, key_position=at))
    np.testing.assert_allclose(numpy_of(graph(x, places)), expected, **CLOSE)
    if name in ("relative", "key_query"):  # whose rows end at 7: only the query that sees further is spoilt
        places[0, 4] = 9
        spoilt = np.isnan(numpy_of(graph(x, places))).all(axis=-1)
        assert spoilt.tolist() == [[False] * 4 + [True, False], [False] * 6]


@pytest.mark.skipif(BACKEND == "torch", reason="Keras has no graphs on torch")
@pytest.mark.parametrize("name", ["alibi", "transformer_xl"])
def test_a_graph_cannot_read_explicit_positions(name):
    layer = attention(ENCODINGS[name]())
    x = normal(2, 6, WIDTH)
    layer(x, x)
    graph = in_graph(lambda x, at: layer(x, x, query_position=at))
    with pytest.raises(
        UnsupportedError, match="got explicit positions whose values exist only while the graph runs, and"
    ):
        graph(x, np.arange(6, dtype="int32"))


ROTATIONS = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 5},
    "longrope": {
        "rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], "factor": 4.0,
        "original_max_position_embeddings": 5.5,
    },
}  # fmt: skip


@pytest.mark.skipif(BACKEND == "torch", reason="Keras has no graphs on torch")
@pytest.mark.parametrize("name", ROTATIONS)
def test_a_graph_turns_by_the_length_that_it_finds(name):
    """Starts, explicit positions and (TensorFlow) lengths that only the graph knows, below and beyond 5."""
    layer = attention(rk.RotaryEmbedding(SIZE, scaling=ROTATIONS[name]), query_block=4)
    layer(normal(2, 3, WIDTH), normal(2, 3, WIDTH))

    def step(x, start):
        return layer(x, x, query_position=start, key_position=start)

    graph = compiled(step, jit=False)
    explicit = in_graph(step)
    if BACKEND == "jax" and name == "dynamic":
        said = (
            "RotaryEmbedding: got positions whose values exist only while the graph runs, and the scaling 'dynamic', "
            "whose frequencies need float64, which Keras does not have on JAX; give starts as Python's own ints, or "
            "call it without jax.jit"
        )
        for start in (np.int32(2), np.arange(5, dtype="int32")):
            with pytest.raises(UnsupportedError, match=re.escape(said)):
                graph(normal(2, 5, WIDTH), start)
        return
    for length, start in ((3, 0), (4, 1), (5, 1), (5, 1000), (1, 6)):
        x = normal(2, length, WIDTH, seed=length)
        expected = numpy_of(step(x, start))
        np.testing.assert_allclose(numpy_of(graph(x, np.int32(start))), expected, **CLOSE)
        places = start + np.arange(length, dtype="int32")[None].repeat(2, 0)
        np.testing.assert_allclose(numpy_of(explicit(x, places)), expected, **CLOSE)


def in_graph(function):
    """The function as one graph, whose arguments it does not know."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    import jax

    return jax.jit(function)


@every_encoding
def test_far_starts_change_nothing(name):
    """Offsets are what counts: both starts moved far beyond what float32 or float16 hold exactly."""
    layer = attention(ENCODINGS[name](), query_block=3)
    x = normal(1, 7, WIDTH)
    expected = numpy_of(layer(x, x, use_causal_mask=True))
    far = 2**24 + 43
    actual = numpy_of(layer(x, x, use_causal_mask=True, query_position=far, key_position=far))
    np.testing.assert_allclose(actual, expected, **CLOSE)


def test_waves_are_right_at_every_position():
    from relattn.keras.installed import ops
    from relattn.keras.waves import cos_sin

    rng = seeds.generator("positions")
    positions = np.concatenate([np.arange(-300, 300), rng.integers(-(2**31), 2**31, 300)]).astype("int32")
    frequencies = np.concatenate([10000.0 ** -np.linspace(0, 1, 9), [9.0, 0.0]])
    cos, sin = cos_sin(ops.convert_to_tensor(positions), frequencies, "float32")
    angles = positions[:, None].astype(np.longdouble) * frequencies.astype(np.longdouble)
    # u = 2^-24: half a turn is rounded to u / 4, 2 pi and the product to u each, at most pi; cosines are good to 2 u.
    allowed = (2 * np.pi / 4 + 2 * np.pi + 2) * 2.0**-24
    assert np.abs(numpy_of(cos) - np.cos(angles)).max() < allowed
    assert np.abs(numpy_of(sin) - np.sin(angles)).max() < allowed
