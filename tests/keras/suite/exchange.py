"""Weights carried between the PyTorch modules and the layers, both ways: equal outputs and equal gradients."""

import inspect

import keras
import numpy as np
import pytest
import torch

import relattn
import relattn.keras as rk
from relattn.keras.exchange import ARGUMENTS, TORCH_ALONE
from relattn.nn import RelativeMultiheadAttention
from tests import seeds
from tests.bad_input.refusal import refused
from tests.keras.gradients import answer_and_gradients, numpy_of

HEADS, SIZE, WIDTH = 4, 6, 20

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 5}
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": (2.0, 3.0, np.float32(4.5)),
    "factor": None, "attention_factor": 1.2, "original_max_position_embeddings": 5,
}  # fmt: skip

MODULES = {
    "none": lambda: None,
    "relative": lambda: relattn.RelativeEmbedding(SIZE, 9),
    "relative_causal": lambda: relattn.RelativeEmbedding(SIZE, 9, num_heads=HEADS, causal=True),
    "shaw": lambda: relattn.ShawEmbedding(SIZE, (3, 1), num_heads=HEADS),
    "shaw_keys": lambda: relattn.ShawEmbedding(SIZE, 2, values=False),
    "transformer_xl": lambda: relattn.TransformerXLEmbedding(HEADS, SIZE, embed_dim=10, interleaved=True),
    "transformer_xl_learned": lambda: relattn.TransformerXLEmbedding(HEADS, SIZE, max_length=9),
    "t5": lambda: relattn.T5Bias(HEADS, num_buckets=8, max_distance=5, bidirectional=False),
    "relative_clamp": lambda: relattn.RelativeEmbedding(SIZE, 3, beyond="clamp"),
    "alibi": lambda: relattn.AlibiBias(HEADS),
    "alibi_given": lambda: relattn.AlibiBias(HEADS, [0.3, 0.5, 0.7, 0.9], signed=True),
    "alibi_learned": lambda: relattn.AlibiBias(HEADS, learned=True),
    "alibi_learned_given": lambda: relattn.AlibiBias(HEADS, [0.3, 0.5, 0.7, 0.9], learned=True),
    "key_query": lambda: relattn.KeyQueryEmbedding(SIZE, 9, num_heads=HEADS),
    "disentangled": lambda: relattn.DisentangledEmbedding(HEADS, SIZE, embed_dim=5, max_distance=6, num_buckets=4),
    "disentangled_p2c": lambda: relattn.DisentangledEmbedding(HEADS, SIZE, max_distance=3, c2p=False),
    "sum": lambda: relattn.TransformerXLEmbedding(HEADS, SIZE) + relattn.ShawEmbedding(SIZE, 2) + relattn.T5Bias(HEADS),
    "rope": lambda: relattn.RotaryEmbedding(SIZE, base=50.0, rotary_dim=4, interleaved=True),
    "rope_scaled": lambda: relattn.RotaryEmbedding(SIZE, scaling={"rope_type": "linear", "factor": 2.0}),
    "rope_dynamic": lambda: relattn.RotaryEmbedding(SIZE, base=50.0, scaling=DYNAMIC),
    "rope_longrope": lambda: relattn.RotaryEmbedding(SIZE, base=50.0, scaling=LONGROPE),
}
every_module = pytest.mark.parametrize("name", MODULES)


def random_weights(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def assert_same_module(module: torch.nn.Module, again: torch.nn.Module) -> None:
    assert type(again) is type(module) and repr(again) == repr(module)
    expected, actual = dict(module.named_parameters()), dict(again.named_parameters())
    assert list(actual) == list(expected)
    for name, parameter in expected.items():
        torch.testing.assert_close(actual[name], parameter, rtol=0, atol=0)
        assert actual[name].data_ptr() != parameter.data_ptr()


@every_module
def test_encodings_go_there_and_back(name):
    module = MODULES[name]()
    if module is None:
        return
    random_weights(module)
    layer = rk.from_torch(module)
    assert type(layer).__name__ == type(module).__name__
    pairs = zip(layer.operands, module.encodings, strict=True) if name == "sum" else [(layer, module)]
    for ours, theirs in pairs:
        parameters = {each.replace(".", "_"): parameter for each, parameter in theirs.named_parameters()}
        assert {weight.name for weight in ours.weights} == set(parameters)
        for weight in ours.weights:
            np.testing.assert_array_equal(numpy_of(weight), parameters[weight.name].detach().double().numpy())
    assert_same_module(module, rk.to_torch(layer))


def test_arguments_have_one_name_and_one_default_on_both_sides():
    for name, arguments in ARGUMENTS.items():
        theirs = dict(inspect.signature(getattr(relattn, name)).parameters)
        if name == "RotaryEmbedding":  # those of several axes, which are refused
            for argument in ("sections", "own_frequencies", "interleaved_sections"):
                assert not theirs.pop(argument).default
        ours = dict(inspect.signature(getattr(rk, name)).parameters)
        assert ours.pop("kwargs").kind is inspect.Parameter.VAR_KEYWORD
        described = [[(p.name, p.kind, p.default) for p in side.values()] for side in (ours, theirs)]
        assert described[0] == described[1], name
        assert set(arguments) == set(theirs)


@pytest.mark.parametrize("bias", [True, False])
@every_module
def test_attention_answers_alike_and_comes_back(name, bias):
    module = random_weights(
        RelativeMultiheadAttention(
            WIDTH, HEADS, MODULES[name](), head_dim=SIZE, bias=bias, kdim=5, vdim=7, dropout=0.1, scale=0.3
        )
    ).eval()
    layer = rk.from_torch(module)
    assert_same_module(module, rk.to_torch(layer))

    rng = seeds.generator(0)
    arrays = {
        "query": rng.normal(size=(2, 6, WIDTH)).astype("float32"),
        "key": rng.normal(size=(2, 8, 5)).astype("float32"),
        "value": rng.normal(size=(2, 8, 7)).astype("float32"),
    }
    upstream = rng.normal(size=(2, 6, WIDTH)).astype("float32")
    weights = {weight.path: weight for weight in layer.weights}

    def call(tensors):
        with keras.StatelessScope(state_mapping=[(weights[path], tensors[path]) for path in weights]):
            return layer(tensors["query"], tensors["value"], key=tensors["key"], use_causal_mask=True, query_position=1)

    values = {path: numpy_of(weight).astype("float32") for path, weight in weights.items()}
    output, gradients = answer_and_gradients(call, {**arrays, **values}, upstream)

    inputs = {n: torch.from_numpy(array).requires_grad_() for n, array in arrays.items()}
    expected = module(**inputs, is_causal=True, query_position=1)
    expected.backward(torch.from_numpy(upstream))
    close = {"rtol": 2e-4, "atol": 2e-4}
    np.testing.assert_allclose(numpy_of(output), expected.detach().numpy(), **close)
    for n, tensor in inputs.items():
        np.testing.assert_allclose(numpy_of(gradients[n]), tensor.grad.numpy(), err_msg=n, **close)

    for parameter in module.parameters():
        parameter.data = parameter.grad
    theirs = [numpy_of(weight) for weight in rk.from_torch(module).weights]  # a layer whose weights are gradients
    # A hundred float32 terms in another order. Some of these sums cancel (the key's bias moves no softmax), so their
    # terms, and roundings, are of the size of the largest gradient and not of their own.
    largest = max(np.abs(gradient).max() for gradient in theirs)
    for path, gradient in zip(weights, theirs, strict=True):
        np.testing.assert_allclose(numpy_of(gradients[path]), gradient, err_msg=path, rtol=0, atol=1e-5 * largest)


def test_learned_slopes_keep_where_they_started():
    layer = rk.from_torch(random_weights(MODULES["alibi_learned_given"]()))
    assert layer.get_config()["slopes"] == [0.3, 0.5, 0.7, 0.9]
    module = rk.to_torch(layer)
    module.reset_parameters()
    torch.testing.assert_close(module.slopes.detach(), torch.tensor([0.3, 0.5, 0.7, 0.9]), rtol=0, atol=0)


@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
@pytest.mark.parametrize(
    "position",
    [0, 1, 2, 100_000, np.array(2), np.array([0, 4, 1]), np.array([[0, 1, 2], [7, 3, 5]]), np.array([-9, -4, -7])],
    ids=str,
)
def test_rotations_by_length_turn_as_in_pytorch(scaling, position):
    """A start or explicit positions, within the original length of 5 and beyond: the largest position + 1 decides."""
    module = relattn.RotaryEmbedding(SIZE, base=50.0, scaling=scaling)
    features = seeds.generator(0).normal(size=(2, HEADS, 3, SIZE)).astype("float32")
    place = relattn.ContiguousPositions(position) if isinstance(position, int) else relattn.ExplicitPositions(
        torch.from_numpy(np.broadcast_to(position if position.ndim else position + np.arange(3), (2, 3)).copy())
    )  # fmt: skip
    expected = module.prepare_keys(torch.from_numpy(features), place).numpy()
    # Cosines good to a few 2^-24, times features of size 4 and attention_factor.
    actual = numpy_of(rk.from_torch(module)(features, position=position))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-6)
    plain = relattn.RotaryEmbedding(SIZE, base=50.0).prepare_keys(torch.from_numpy(features), place).numpy()
    within = np.max(position) + (0 if np.ndim(position) else 2) < 5
    assert np.allclose(expected, plain, atol=1e-3) == (scaling is DYNAMIC and within)


def test_bfloat16_is_carried_exactly():
    module = random_weights(RelativeMultiheadAttention(WIDTH, HEADS, relattn.ShawEmbedding(5, 2))).to(torch.bfloat16)
    layer = rk.from_torch(module)
    assert {weight.dtype for weight in layer.weights} == {"bfloat16"}
    assert_same_module(module, rk.to_torch(layer))


def test_what_has_no_counterpart_is_refused():
    def module(**changes):
        return RelativeMultiheadAttention(WIDTH, HEADS, **changes)

    def layer(**changes):
        made = rk.RelativeMultiHeadAttention(HEADS, SIZE, **changes)
        made.build((None, None, WIDTH), (None, None, WIDTH))
        return made

    unsupported = relattn.UnsupportedError
    with refused(unsupported, "from_torch: got num_kv_heads=2 with num_heads=4; ... has no grouped queries"):
        rk.from_torch(module(num_kv_heads=2))
    with refused(unsupported, "from_torch: got a Own, which has no counterpart in relattn.keras"):
        rk.from_torch(type("Own", (relattn.AlibiBias,), {})(HEADS))
    for own in (relattn.KerpleBias(HEADS), relattn.SandwichBias(HEADS), relattn.FunctionBias(torch.cos, HEADS)):
        said = f"from_torch: got a {type(own).__name__}, which has no counterpart in relattn.keras"
        with refused(unsupported, said):
            rk.from_torch(relattn.AlibiBias(HEADS) + own)
    with refused(TypeError, "from_torch: got Linear; expected an encoding of relattn or relattn.nn.Relative..."):
        rk.from_torch(torch.nn.Linear(2, 2))
    with refused(TypeError, "to_torch: got Attention; expected an encoding of relattn.keras or Relative..."):
        rk.to_torch(rk.Attention(SIZE, 3))
    with refused(TypeError, "to_torch: got Dense; expected an encoding of relattn.keras or RelativeMultiHeadAttention"):
        rk.to_torch(keras.layers.Dense(2))
    with refused(ValueError, "to_torch: the layer is not built yet; call it once, or build it with its input shapes"):
        rk.to_torch(rk.RelativeMultiHeadAttention(HEADS, SIZE))
    for changes in ({"value_dim": 3}, {"output_shape": (5,)}, {"use_gate": True}, {"sliding_window": 2}):
        (name, value), *_ = changes.items()
        with refused(unsupported, f"to_torch: got {name}={value!r}; ... has only {name}=..."):
            rk.to_torch(layer(**changes))


def test_every_public_encoding_is_carried_over():
    made = {type(make()).__name__ for make in MODULES.values()}
    public = {
        name for name in relattn.__all__
        if isinstance(thing := getattr(relattn, name), type) and issubclass(thing, relattn.RelativeEncoding)
    }  # fmt: skip
    assert made - {"NoneType", "EncodingSum"} == public - {"RelativeEncoding", *TORCH_ALONE} == set(ARGUMENTS)


def test_sections_are_refused():
    with refused(
        relattn.UnsupportedError,
        "from_torch: got a RotaryEmbedding with sections, which turns by several axes; relattn.keras supports only "
        "the sequence, so keep it in PyTorch",
    ):
        rk.from_torch(relattn.RotaryEmbedding(SIZE, sections={"y": 1, "x": SIZE // 2 - 1}))
