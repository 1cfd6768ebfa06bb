"""RelativeMultiHeadAttention in the place of keras.layers.MultiHeadAttention, and how every layer lives in Keras."""

import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from keras import ops

import relattn.keras as rk
from tests import seeds
from tests.keras.gradients import BACKEND, answer_and_gradients, numpy_of, with_weights

B, LQ, LK, WIDTH, HEADS, SIZE = 2, 6, 7, 12, 2, 4

ENCODINGS = {
    "none": lambda: None,
    "relative": lambda: rk.RelativeEmbedding(SIZE, 8, num_heads=HEADS),
    "shaw": lambda: rk.ShawEmbedding(SIZE, (3, 2)),
    "transformer_xl": lambda: rk.TransformerXLEmbedding(HEADS, SIZE),
    "transformer_xl_learned": lambda: rk.TransformerXLEmbedding(HEADS, SIZE, max_length=8),
    "t5": lambda: rk.T5Bias(HEADS, num_buckets=8, max_distance=6),
    "alibi": lambda: rk.AlibiBias(HEADS),
    "alibi_learned": lambda: rk.AlibiBias(HEADS, [0.5, 0.25], learned=True, signed=True),
    "rope": lambda: rk.RotaryEmbedding(SIZE),
    "key_query": lambda: rk.KeyQueryEmbedding(SIZE, 8),
    "disentangled": lambda: rk.DisentangledEmbedding(HEADS, SIZE, max_distance=6, num_buckets=4),
    "sum": lambda: rk.TransformerXLEmbedding(HEADS, SIZE) + rk.ShawEmbedding(SIZE, (3, 2)) + rk.AlibiBias(HEADS),
}
FEW = ("relative", "disentangled", "sum")
every_encoding = pytest.mark.parametrize("name", FEW if BACKEND == "jax" else ENCODINGS)
"""JAX compiles every operation for every shape: there the contract tries each encoding, and a few are tried here."""


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return seeds.generator(seed).normal(size=shape).astype("float32")


def attention(encoding, **arguments):
    return rk.RelativeMultiHeadAttention(HEADS, SIZE, encoding=encoding, **arguments)


def twin(layer, **arguments):
    """A layer of the same weights and encoding, made with other arguments."""
    other = attention(layer.encoding, **arguments)
    other.build((None, None, WIDTH), (None, None, WIDTH))
    other.set_weights(layer.get_weights())
    return other


CLOSE = {"rtol": 1e-4, "atol": 1e-6}


# --- a drop-in ---

CALLS = [
    {},
    {"use_causal_mask": True},
    {"attention_mask": np.tri(LQ, LK, 2, dtype=bool)},
    {"attention_mask": np.tri(LQ, LK, 2, dtype=bool)[None].repeat(B, 0), "use_causal_mask": True},
    {"value_mask": np.arange(LK)[None] < np.array([[7], [6]])},
    {"key": normal(B, LK, WIDTH, seed=3), "return_attention_scores": True},
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
@pytest.mark.parametrize("arguments", [{}, {"use_bias": False, "output_shape": 5}, {"sliding_window": 2}], ids=str)
def test_without_an_encoding_it_is_keras_own_layer(call, arguments):
    query, value = normal(B, LQ, WIDTH), normal(B, LK, WIDTH, seed=1)
    theirs = keras.layers.MultiHeadAttention(HEADS, SIZE, **arguments)
    expected = theirs(query, value, **call)
    ours = attention(None, **arguments)
    ours.build(query.shape, value.shape, call["key"].shape if "key" in call else None)
    ours.set_weights(theirs.get_weights())
    blocks = attention(None, query_block=4, **arguments)
    blocks.build(query.shape, value.shape, call["key"].shape if "key" in call else None)
    blocks.set_weights(theirs.get_weights())
    actual, in_blocks = ours(query, value, **call), blocks(query, value, **call)
    if "return_attention_scores" not in call:
        expected, actual, in_blocks = [expected], [actual], [in_blocks]
    for a, b, c in zip(expected, actual, in_blocks, strict=True):
        np.testing.assert_array_equal(numpy_of(a), numpy_of(b))
        np.testing.assert_allclose(numpy_of(a), numpy_of(c), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["none", "alibi", "rope"])
def test_weights_of_keras_own_layer_load(name):
    theirs, ours = keras.layers.MultiHeadAttention(HEADS, SIZE), attention(ENCODINGS[name]())
    for layer in (theirs, ours):
        layer.build((None, None, WIDTH), (None, None, WIDTH))
    ours.set_weights(theirs.get_weights())
    for a, b in zip(theirs.weights, ours.weights, strict=True):
        assert a.path.split("/")[1:] == b.path.split("/")[1:]
        np.testing.assert_array_equal(numpy_of(a), numpy_of(b))


def test_weights_of_keras_own_layer_load_beside_those_of_an_encoding():
    theirs, ours = keras.layers.MultiHeadAttention(HEADS, SIZE), attention(rk.T5Bias(HEADS))
    for layer in (theirs, ours):
        layer.build((None, None, WIDTH), (None, None, WIDTH))
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        getattr(ours, name).set_weights(getattr(theirs, name).get_weights())
    ours.encoding.bias.assign(np.zeros((32, HEADS)))
    x = normal(B, LQ, WIDTH)
    np.testing.assert_allclose(numpy_of(ours(x, x)), numpy_of(theirs(x, x)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("query_block", [None, 2])
def test_masks_that_keras_propagates(query_block):
    tokens = np.array([[1, 2, 3, 4, 0, 0], [5, 6, 1, 0, 0, 0]])
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    layer = attention(rk.ShawEmbedding(SIZE, 2), query_block=query_block)
    x = embedding(tokens)
    output = layer(x, x, use_causal_mask=True)
    assert output._keras_mask is not None
    plain = numpy_of(x).astype("float32")
    keep = tokens != 0
    pairs = keep[:, :, None] & keep[:, None, :]
    expected = layer(plain, plain, attention_mask=pairs, use_causal_mask=True)
    np.testing.assert_allclose(numpy_of(output), numpy_of(expected), rtol=1e-5, atol=1e-6)
    for row, length in enumerate((4, 3)):
        alone = layer(plain[row : row + 1, :length], plain[row : row + 1, :length], use_causal_mask=True)
        np.testing.assert_allclose(numpy_of(output)[row, :length], numpy_of(alone)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("query_block", [None, 4])
def test_masks_given_by_hand(query_block):
    query, value = normal(B, LQ, WIDTH), normal(B, LK, WIDTH, seed=1)
    queries, values, keys = (normal(B, length, seed=length + i) > -0.5 for i, length in enumerate((LQ, LK, LK)))
    layer = attention(rk.T5Bias(HEADS), query_block=query_block)
    actual = layer(query, value, key=value, query_mask=queries, value_mask=values, key_mask=keys)
    pairs = queries[:, :, None] & (values & keys)[:, None]
    assert (values != keys).any() and not queries.all()
    np.testing.assert_allclose(numpy_of(actual), numpy_of(layer(query, value, attention_mask=pairs)), **CLOSE)


@pytest.mark.parametrize("query_block", [None, 4])
def test_window_and_positions(query_block):
    """What causality and the window leave is told by positions: the same pairs, allowed by a mask."""
    query, value = normal(B, LQ, WIDTH), normal(B, LK, WIDTH, seed=1)
    layer = attention(rk.RotaryEmbedding(SIZE), query_block=query_block, sliding_window=3)
    layer.build(query.shape, value.shape)
    free = twin(layer)
    offsets = 2 + np.arange(LK) - (5 + np.arange(LQ)[:, None])
    starts = {"query_position": 5, "key_position": 2}
    for causal in (False, True):
        near = (np.abs(offsets) < 3) & (offsets <= 0 if causal else True)
        expected = free(query, value, attention_mask=near, **starts)
        actual = layer(query, value, use_causal_mask=causal, **starts)
        np.testing.assert_allclose(numpy_of(actual), numpy_of(expected), **CLOSE)


@every_encoding
def test_blocks_change_nothing(name):
    query, value = normal(B, LQ, WIDTH), normal(B, LK, WIDTH, seed=1)
    mask = normal(B, HEADS, LQ, LK, seed=2) > -1
    layer = attention(ENCODINGS[name](), query_block=LQ)
    call = {"attention_mask": mask, "use_causal_mask": True, "query_position": 1}
    expected = numpy_of(layer(query, value, **call))
    for query_block in (1, 4, 5):
        blocks = numpy_of(twin(layer, query_block=query_block)(query, value, **call))
        np.testing.assert_allclose(blocks, expected, rtol=1e-4, atol=1e-6)
    _, weights = layer(query, value, return_attention_scores=True, **call)
    assert weights.shape == (B, HEADS, LQ, LK)
    visible = mask & (np.arange(LK) <= np.arange(LQ)[:, None] + 1)
    np.testing.assert_allclose(numpy_of(weights).sum(-1), visible.any(-1), atol=1e-6)
    assert not numpy_of(weights)[~visible].any()


@every_encoding
def test_a_cache_goes_on_where_the_sequence_stopped(name):
    x = normal(B, LK, WIDTH)
    layer = attention(ENCODINGS[name]())
    whole = numpy_of(layer(x, x, use_causal_mask=True))
    for start in (4, ops.convert_to_tensor(4, "int32")):
        newest = layer(x[:, 4:6], x[:, :6], use_causal_mask=True, query_position=start)
        np.testing.assert_allclose(numpy_of(newest), whole[:, 4:6], rtol=1e-4, atol=1e-6)


def test_a_query_without_keys_gives_zero_and_no_nan():
    x = normal(1, 4, WIDTH)
    mask = np.ones((1, 4, 4), dtype=bool)
    mask[0, 2] = False
    layer = attention(rk.ShawEmbedding(SIZE, 2), use_bias=False)
    layer.build(x.shape, x.shape)
    weights = {weight.path: weight for weight in layer.weights}

    def call(tensors):
        with keras.StatelessScope(state_mapping=[(weights[path], tensors[path]) for path in weights]):
            return layer(tensors["x"], tensors["x"], attention_mask=mask)

    arrays = {"x": x, **{path: numpy_of(weight).astype("float32") for path, weight in weights.items()}}
    output, gradients = answer_and_gradients(call, arrays, np.ones((1, 4, WIDTH)))
    assert not numpy_of(output)[0, 2].any() and numpy_of(output)[0, 1].any()
    assert all(np.isfinite(numpy_of(gradient)).all() for gradient in gradients.values())


HIDING = {
    "value_mask": ({"value_mask": np.arange(LK) < np.array([[LK - 2], [LK]])}, "keys", [(0, LK - 2), (0, LK - 1)]),
    "key_mask": ({"key_mask": np.arange(LK) != np.array([[0], [3]])}, "keys", [(0, 0), (1, 3)]),
    "query_mask": ({"query_mask": np.arange(LQ) < np.array([[LQ], [4]])}, "queries", [(1, 4), (1, 5)]),
    "keys of a mask": ({"attention_mask": np.tile(np.arange(LK) != 2, (LQ, 1))}, "keys", [(0, 2), (1, 2)]),
    "queries of a mask": ({"attention_mask": np.tile(np.arange(LQ) != 2, (LK, 1)).T}, "queries", [(0, 2), (1, 2)]),
    "causality": ({"use_causal_mask": True}, "keys", [(0, LK - 1), (1, LK - 1)]),
    "causality from a start": ({"use_causal_mask": True, "key_position": 2}, "queries", [(0, 0), (1, 1)]),
    "causality from a tensor": (
        {"use_causal_mask": True, "query_position": ops.convert_to_tensor(-2, "int32")}, "queries", [(0, 0), (1, 1)],
    ),
    "the window": ({"query_position": 3}, "keys", [(0, 0), (1, 1)]),
}  # fmt: skip
"""What hides something, whose rows it hides, and some of them: (batch element, row)."""


def assert_nothing_reaches(layer, call, side: str, rows: list[tuple[int, int]]) -> None:
    """Output and every gradient are those with zeros in the rows, which get the gradient zero."""
    weights = {weight.path: weight for weight in layer.weights}
    values = {path: numpy_of(weight).astype("float32") for path, weight in weights.items()}

    def attend(tensors):
        with keras.StatelessScope(state_mapping=[(weights[path], tensors[path]) for path in weights]):
            return layer(tensors["query"], tensors["value"], key=tensors["key"], **call)

    answers = []
    for filling in (0.0, np.nan, np.inf, -np.inf):
        arrays = {"query": normal(B, LQ, WIDTH), "value": normal(B, LK, WIDTH), "key": normal(B, LK, WIDTH, seed=2)}
        padded = ["query"] if side == "queries" else ["key", "value"]
        for name in padded:
            for row in rows:
                arrays[name][row] = filling
        output, gradients = answer_and_gradients(attend, {**arrays, **values}, normal(B, LQ, WIDTH, seed=3))
        answers.append({"output": numpy_of(output), **{name: numpy_of(each) for name, each in gradients.items()}})
        for name in padded:
            assert all(not answers[-1][name][row].any() for row in rows)
    for answer in answers:
        for name, expected in answers[0].items():
            assert np.isfinite(expected).all()
            np.testing.assert_array_equal(answer[name], expected, err_msg=name)


@pytest.mark.parametrize("query_block", [None, 4])
@pytest.mark.parametrize("hiding", HIDING)
def test_padding_never_matters(hiding, query_block):
    call, side, rows = HIDING[hiding]
    window = {"sliding_window": 2} if hiding == "the window" else {}
    layer = attention(ENCODINGS["shaw"](), query_block=query_block, **window)
    layer.build((B, LQ, WIDTH), (B, LK, WIDTH))
    assert_nothing_reaches(layer, call, side, rows)


@every_encoding
def test_padding_never_matters_under_any_encoding(name):
    layer = attention(ENCODINGS[name](), query_block=4)
    layer.build((B, LQ, WIDTH), (B, LK, WIDTH))
    for hiding in ("value_mask", "query_mask"):
        assert_nothing_reaches(layer, *HIDING[hiding])


# --- dropout ---


@pytest.mark.parametrize("query_block", [None, 3])
def test_dropout_drops_in_training_only_and_keeps_the_mean(query_block):
    x = normal(1, 12, WIDTH)
    layer = attention(rk.AlibiBias(HEADS), dropout=0.5, query_block=query_block, seed=1)
    still = numpy_of(layer(x, x, training=False))
    np.testing.assert_array_equal(still, numpy_of(layer(x, x)))
    draws = np.stack([numpy_of(layer(x, x, training=True)) for _ in range(200)])
    assert np.abs(draws[0] - draws[1]).max() > 1e-3, "every call draws anew"
    spread = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - still) < 6 * spread + 1e-6).all()
    rows = draws - still
    first, second = rows[:, 0, 3], rows[:, 0, 7]  # of two blocks: no mask is used twice
    assert np.abs(np.corrcoef(first.T, second.T)[:WIDTH, WIDTH:]).mean() < 0.2


def test_every_block_drops_weights_of_its_own():
    """Equal queries have equal weights: their outputs differ by what was dropped, and by nothing else."""
    query, value = np.ones((1, 6, WIDTH), dtype="float32"), normal(1, 16, WIDTH)
    output = numpy_of(attention(None, dropout=0.5, query_block=3, seed=1)(query, value, training=True))[0]
    assert all(np.abs(output[i] - output[j]).max() > 1e-3 for i in range(6) for j in range(i))


def test_dropout_of_a_block_is_the_same_in_its_gradient():
    """The output is linear in the values: with the same weights dropped, <dO/dV, V> is the output again."""
    x = normal(1, 6, WIDTH)
    layer = attention(rk.AlibiBias(HEADS), dropout=0.5, query_block=2, use_bias=False, seed=1)
    layer.build(x.shape, x.shape)
    kernel = layer.value_dense.kernel

    def call(tensors):
        with with_weights(layer.value_dense, tensors):
            return layer(x, x, training=True)

    upstream = normal(1, 6, WIDTH, seed=4)
    arrays = {"kernel": numpy_of(kernel).astype("float32")}
    output, gradients = answer_and_gradients(call, arrays, upstream)
    through = (numpy_of(gradients["kernel"]) * arrays["kernel"]).sum()
    np.testing.assert_allclose(through, (numpy_of(output) * upstream).sum(), rtol=1e-3, atol=1e-4)


# --- life in Keras ---


def functional_model(name: str, **arguments):
    inputs = keras.Input((None, WIDTH))
    output = attention(ENCODINGS[name](), **arguments)(inputs, inputs, use_causal_mask=True)
    return keras.Model(inputs, output)


@every_encoding
def test_a_keras_file_gives_the_model_back(name, tmp_path):
    model = functional_model(name, scale=0.7, query_block=3)
    x = normal(B, LQ, WIDTH)
    expected = numpy_of(model(x))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy_of(again(x)), expected)
    layer = again.layers[-1]
    assert (layer.scale, layer.query_block, type(layer.encoding)) == (0.7, 3, type(model.layers[-1].encoding))


LOADING = """
import sys, keras
{first}
try:
    model = keras.saving.load_model(sys.argv[1])
    print(*(type(layer).__module__.split(".")[0] for layer in model.layers))
except TypeError as error:
    print(str(error)[str(error).rindex("Could not locate") :])
"""


def test_a_program_that_loads_a_model_imports_relattn_keras(tmp_path):
    """Keras alone imports nothing; its message then shows the module."""
    functional_model("sum").save(tmp_path / "model.keras")

    def loaded(first: str) -> str:
        command = [sys.executable, "-W", "ignore", "-c", LOADING.format(first=first), str(tmp_path / "model.keras")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert loaded("import relattn.keras").split() == ["keras", "relattn"]
    said = loaded("")
    assert said.startswith("Could not locate class 'RelativeMultiHeadAttention'")
    assert "'module': 'relattn.keras." in said and "'relattn>RelativeMultiHeadAttention'" in said


@every_encoding
def test_configs_describe_the_layer(name):
    layer = ENCODINGS[name]()
    if layer is None:
        return
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    for each in (layer, again):
        each.build((None, HEADS, None, SIZE))
    assert [(w.name, w.shape) for w in layer.weights] == [(w.name, w.shape) for w in again.weights]


@pytest.mark.parametrize(
    "make",
    [
        lambda: rk.RelativeEmbedding(SIZE, 9, num_heads=HEADS, causal=True),
        lambda: rk.ShawEmbedding(SIZE, (3, 1), num_heads=HEADS, values=False),
        lambda: rk.TransformerXLEmbedding(HEADS, SIZE, embed_dim=6, interleaved=True),
        lambda: rk.TransformerXLEmbedding(HEADS, SIZE, max_length=9),
        lambda: rk.T5Bias(HEADS, num_buckets=4, max_distance=5, bidirectional=False),
        lambda: rk.AlibiBias(HEADS),
        lambda: rk.RelativeEmbedding(np.int64(SIZE), np.int32(2), beyond="zero"),
        lambda: rk.AlibiBias(HEADS, (0.5, 0.25), learned=True, signed=True),
        lambda: rk.RotaryEmbedding(
            SIZE, base=50.0, rotary_dim=2, interleaved=True, scaling={"rope_type": "linear", "factor": 2.0}
        ),
    ],
)
def test_a_keras_file_gives_an_encoding_by_itself_back(make, tmp_path):
    inputs = keras.Input((HEADS, None, SIZE))
    model = keras.Model(inputs, make()(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    queries = normal(B, HEADS, LQ, SIZE)
    np.testing.assert_array_equal(numpy_of(again(queries)), numpy_of(model(queries)))


def test_a_keras_file_with_the_older_word_for_an_error(tmp_path):
    """In a layer's own encoding and in a sum: one sentence names the word."""
    inputs = keras.Input((None, WIDTH))
    for encoding in (rk.RelativeEmbedding(SIZE, 9), rk.T5Bias(HEADS) + rk.RelativeEmbedding(SIZE, 9)):
        keras.Model(inputs, attention(encoding)(inputs, inputs)).save(tmp_path / "new.keras")
        with zipfile.ZipFile(tmp_path / "new.keras") as new, zipfile.ZipFile(tmp_path / "old.keras", "w") as old:
            for name in new.namelist():
                old.writestr(name, new.read(name).replace(b'"beyond": "error"', b'"beyond": "refuse"'))
        with pytest.raises(ValueError) as caught:
            keras.saving.load_model(tmp_path / "old.keras")
        assert str(caught.value) == "beyond: got 'refuse'; expected one of 'error', 'clamp', 'zero'"


def test_an_encoding_shared_by_layers_is_one_after_loading(tmp_path):
    inputs = keras.Input((None, WIDTH))
    shared = rk.T5Bias(HEADS)
    x = attention(shared)(inputs, inputs)
    model = keras.Model(inputs, attention(shared)(x, x))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = normal(B, LQ, WIDTH)
    np.testing.assert_array_equal(numpy_of(again(x)), numpy_of(model(x)))
    first, second = again.layers[-2:]
    assert first.encoding is second.encoding
    alone = [type(layer).from_config(layer.get_config()).encoding for layer in model.layers[-2:]]
    assert alone[0] is not shared and alone[0] is not alone[1]


@every_encoding
@pytest.mark.parametrize("query_block", [None, 4])
def test_explicit_positions_are_positions(name, query_block):
    """The same places, as starts and explicit for all or for each sequence; then an order of keys of their own."""
    query, value = normal(B, LQ, WIDTH), normal(B, LK, WIDTH, seed=1)
    layer = attention(ENCODINGS[name](), query_block=query_block)
    expected = numpy_of(layer(query, value, use_causal_mask=True, query_position=2, key_position=1))
    queries, keys = 2 + np.arange(LQ), 1 + np.arange(LK)
    for places in ((queries, keys), (queries[None].repeat(B, 0), 1), (2, keys[None].repeat(B, 0))):
        actual = layer(query, value, use_causal_mask=True, query_position=places[0], key_position=places[1])
        np.testing.assert_allclose(numpy_of(actual), expected, **CLOSE)
    order = np.stack([seeds.generator(row).permutation(LK) for row in range(B)])
    shuffled = np.take_along_axis(value, order[..., None], axis=1)
    actual = layer(query, shuffled, use_causal_mask=True, query_position=2, key_position=keys[order])
    np.testing.assert_allclose(numpy_of(actual), expected, **CLOSE)


@pytest.mark.parametrize("name", ["relative", "shaw", "transformer_xl", "t5", "alibi"])
def test_output_shapes_of_encodings(name):
    layer = ENCODINGS[name]()
    queries = normal(B, HEADS, LQ, SIZE)
    scores = layer(queries, key_length=LK)
    shape = (1 if name in ("t5", "alibi") else B, HEADS, LQ, LK)
    assert tuple(scores.shape) == shape == layer.compute_output_shape(queries.shape, LK)
    symbolic = layer(keras.KerasTensor((None, HEADS, None, SIZE), dtype="float32"), key_length=LK)
    assert symbolic.shape[1:] == (HEADS, None, LK)


def test_output_shapes_of_attention_and_rotation():
    layer = attention(rk.RotaryEmbedding(SIZE), output_shape=5)
    query, value = keras.KerasTensor((3, 4, WIDTH)), keras.KerasTensor((3, 9, WIDTH))
    output, weights = layer(query, value, return_attention_scores=True)
    assert output.shape == (3, 4, 5) and weights.shape == (3, HEADS, 4, 9)
    rotation = rk.RotaryEmbedding(SIZE)
    assert rotation(keras.KerasTensor((3, HEADS, None, SIZE))).shape == (3, HEADS, None, SIZE)
    assert rotation.compute_output_shape((3, HEADS, 4, SIZE)) == (3, HEADS, 4, SIZE)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@every_encoding
def test_mixed_precision_rounds_inputs_only(name, policy):
    """float32 weights, half-precision inputs and outputs, everything between from positions to softmax in float32.

    The budget is that of tests/oracle/budget.py: twice the error of the plain layer in the same dtype, Keras' own
    without an encoding and with the same projections, which rounds the same inputs, projections and outputs; and the
    rounding of one operand.
    """
    x = normal(1, 400, WIDTH)
    with_reach = {
        "relative": lambda: rk.RelativeEmbedding(SIZE, 400, num_heads=HEADS),
        "transformer_xl_learned": lambda: rk.TransformerXLEmbedding(HEADS, SIZE, max_length=400),
        "key_query": lambda: rk.KeyQueryEmbedding(SIZE, 400),
    }
    encoding = with_reach.get(name, ENCODINGS[name])()
    layer = attention(encoding, query_block=200, dtype=policy)
    output = layer(x, x)
    half = policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(output.dtype) == half
    assert all(weight.dtype == "float32" for weight in layer.weights)
    exact = numpy_of(twin(layer, query_block=200, dtype="float32")(x, x))
    plain = attention(None, dtype=policy)
    plain.build(x.shape, x.shape)
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        getattr(plain, name).set_weights(getattr(layer, name).get_weights())
    plain_output = numpy_of(plain(x, x))
    plain_error = np.abs(plain_output - numpy_of(twin(plain, dtype="float32")(x, x))).max()
    eps = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[half]
    error, allowed = np.abs(numpy_of(output) - exact).max(), 2 * plain_error + eps * np.abs(exact).max()
    assert error < allowed, f"{error} where {allowed} is allowed"


@every_encoding
def test_a_model_trains(name):
    model = functional_model(name, query_block=4)
    model.compile(optimizer="sgd", loss="mse")  # jit_compile="auto"
    x, y = normal(4, 8, WIDTH), normal(4, 8, WIDTH, seed=1)
    before = [w.copy() for w in model.get_weights()]
    model.fit(x, y, batch_size=2, epochs=1, verbose=0)
    names = [weight.path for weight in model.weights]
    unmoved = [n for n, old, new in zip(names, before, model.get_weights(), strict=True) if np.array_equal(old, new)]
    # What is added to all scores of a query moves no softmax.
    still = ("key/bias", "pos_key_proj_bias")
    assert all(n.endswith(still) for n in unmoved), f"no gradient reached {unmoved}"
    assert model.predict(x, verbose=0).shape == y.shape


@pytest.mark.parametrize("name", ["shaw", "disentangled"])
def test_positions_are_inputs_of_a_model_that_trains(name):
    inputs, places = keras.Input((None, WIDTH)), keras.Input((None,), dtype="int32")
    layer = attention(ENCODINGS[name](), query_block=4)
    output = layer(inputs, inputs, use_causal_mask=True, query_position=places, key_position=places)
    model = keras.Model([inputs, places], output)
    model.compile(optimizer="sgd", loss="mse")
    x, at = normal(B, LQ, WIDTH), np.array([[0, 2, 1, 5, 3, 7], [4, 4, 0, 1, 2, 3]], dtype="int32")
    before = [w.copy() for w in layer.encoding.get_weights()]
    model.fit([x, at], normal(B, LQ, WIDTH, seed=1), epochs=1, verbose=0)
    assert not np.array_equal(layer.encoding.get_weights()[0], before[0])
    expected = numpy_of(layer(x, x, use_causal_mask=True, query_position=at, key_position=at))
    np.testing.assert_allclose(model.predict([x, at], verbose=0), expected, rtol=1e-4, atol=1e-5)
