"""Weights between the PyTorch modules of relattn and the layers here, both ways: a table of names.

Encodings have the same class names, arguments and weight names on both sides, so the table lists them once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from relattn import keras as layers
from relattn.checks.values import kind_of
from relattn.errors import UnsupportedError
from relattn.keras.installed import keras, ops

if TYPE_CHECKING:
    from torch import nn

    import relattn
    from relattn.keras import Attention, RelativeEncoding, RelativeMultiHeadAttention, RelativePositionalEmbedding

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "RelativeEmbedding": ("head_dim", "max_length", "num_heads", "causal", "beyond"),
    "ShawEmbedding": ("head_dim", "max_distance", "num_heads", "values"),
    "TransformerXLEmbedding": ("num_heads", "head_dim", "embed_dim", "interleaved", "max_length"),
    "T5Bias": ("num_heads", "num_buckets", "max_distance", "bidirectional"),
    "AlibiBias": ("num_heads", "slopes", "learned", "signed"),
    "RotaryEmbedding": ("head_dim", "base", "rotary_dim", "interleaved", "scaling"),
    "KeyQueryEmbedding": ("head_dim", "max_length", "num_heads"),
    "DisentangledEmbedding": ("num_heads", "head_dim", "embed_dim", "max_distance", "num_buckets", "c2p", "p2c"),
}
"""The arguments of every encoding that both sides have, under one name on both."""

TORCH_ALONE = ("FunctionBias", "KerpleBias", "SandwichBias", "GridBias", "GridEmbedding", "LogGridBias")
"""Encodings without a counterpart here."""

READ: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("ShawEmbedding", "max_distance"): lambda module: (module.left, module.right),
    ("ShawEmbedding", "values"): lambda module: module.relative_values is not None,
    ("TransformerXLEmbedding", "embed_dim"): lambda module: module.embed_dim if module.max_length is None else None,
    ("AlibiBias", "slopes"): lambda module: module.given_slopes,
    ("DisentangledEmbedding", "c2p"): lambda module: module.pos_key_proj is not None,
    ("DisentangledEmbedding", "p2c"): lambda module: module.pos_query_proj is not None,
}
"""How an argument is read from a module without an attribute of that name."""

PROJECTIONS = {"q_proj": "query_dense", "k_proj": "key_dense", "v_proj": "value_dense", "out_proj": "output_dense"}
"""Linear layers of relattn.nn.RelativeMultiheadAttention, and the dense layers of RelativeMultiHeadAttention."""


def from_torch(module: nn.Module) -> RelativeEncoding | RelativeMultiHeadAttention:
    """The layer that computes the same as `module`: an encoding of relattn, or relattn.nn.RelativeMultiheadAttention.

    module: a module of relattn. The layer holds a copy of its weights, in their dtype. It needs torch, for every Keras
        backend.

    Raises TypeError: for another module; UnsupportedError: for a module without a counterpart here, such as your own
    encoding or grouped queries.
    """
    from relattn.nn import RelativeMultiheadAttention

    if isinstance(module, RelativeMultiheadAttention):
        return _attention_from_torch(module)
    return _encoding_from_torch(module)


def to_torch(layer: RelativeEncoding | RelativeMultiHeadAttention) -> nn.Module:
    """The PyTorch module that computes the same as `layer`, with a copy of its weights; the inverse of `from_torch`.

    layer: is built if it is not yet and its sizes are known. A RelativeMultiHeadAttention must have seen its inputs.

    Raises TypeError: for another layer; ValueError: for a layer that is not built; UnsupportedError: for a layer
    without a counterpart: `value_dim` other than `key_dim`, an `output_shape`, a gate, a sliding window, several
    attention axes.
    """
    if isinstance(layer, layers.RelativeMultiHeadAttention):
        return _attention_to_torch(layer)
    return _encoding_to_torch(layer)


def _encoding_from_torch(module: nn.Module) -> RelativeEncoding:
    import relattn
    from relattn.encodings.base import EncodingSum

    if isinstance(module, EncodingSum):
        return reduce(add, map(_encoding_from_torch, module.encodings))
    name = type(module).__name__
    if name not in ARGUMENTS or type(module) is not getattr(relattn, name):
        if isinstance(module, relattn.RelativeEncoding):
            raise UnsupportedError(f"from_torch: got a {name}, which has no counterpart in relattn.keras")
        raise TypeError(
            f"from_torch: got {kind_of(module)}; expected an encoding of relattn or "
            "relattn.nn.RelativeMultiheadAttention"
        )
    if getattr(module, "sections", None) is not None:
        raise UnsupportedError(
            f"from_torch: got a {name} with sections, which turns by several axes; relattn.keras supports only the "
            "sequence, so keep it in PyTorch"
        )
    arguments = {
        argument: READ[name, argument](module) if (name, argument) in READ else getattr(module, argument)
        for argument in ARGUMENTS[name]
    }
    parameters = {_weight_name(name): parameter for name, parameter in module.named_parameters()}
    for parameter in parameters.values():
        arguments["dtype"] = _dtype_name(parameter)
    layer = getattr(layers, name)(**arguments)
    layer.build(None)
    for weight in layer.weights:
        weight.assign(_array(parameters[weight.name]))
    return layer


def _encoding_to_torch(layer: Any) -> Any:
    import relattn

    if isinstance(layer, layers.EncodingSum):
        return reduce(add, map(_encoding_to_torch, layer.operands))
    name = type(layer).__name__
    if name not in ARGUMENTS or type(layer) is not getattr(layers, name):
        raise TypeError(
            f"to_torch: got {kind_of(layer)}; expected an encoding of relattn.keras or RelativeMultiHeadAttention"
        )
    if not layer.built:
        layer.build(None)
    config = layer.get_config()
    module = getattr(relattn, name)(**{argument: config[argument] for argument in ARGUMENTS[name]})
    weights = {weight.name: weight for weight in layer.weights}
    for parameter_name, parameter in module.named_parameters():
        parameter.data = _tensor(weights[_weight_name(parameter_name)])
    return module


def _attention_from_torch(module: Any) -> RelativeMultiHeadAttention:
    if module.num_kv_heads != module.num_heads:
        raise UnsupportedError(
            f"from_torch: got num_kv_heads={module.num_kv_heads} with num_heads={module.num_heads}; "
            "RelativeMultiHeadAttention has no grouped queries"
        )
    layer = layers.RelativeMultiHeadAttention(
        module.num_heads,
        module.head_dim,
        dropout=module.dropout,
        use_bias=module.q_proj.bias is not None,
        encoding=None if module.encoding is None else _encoding_from_torch(module.encoding),
        scale=module.scale,
        dtype=_dtype_name(module.q_proj.weight),
    )
    widths = (module.embed_dim, module.v_proj.in_features, module.k_proj.in_features)
    layer.build(*((None, None, width) for width in widths))
    for theirs, ours in PROJECTIONS.items():
        linear, dense = getattr(module, theirs), getattr(layer, ours)
        dense.kernel.assign(_array(linear.weight).T.reshape(dense.kernel.shape))
        if linear.bias is not None:
            dense.bias.assign(_array(linear.bias).reshape(dense.bias.shape))
    return layer


def _attention_to_torch(layer: Any) -> nn.Module:
    from relattn.nn import RelativeMultiheadAttention

    if not layer.built:
        raise ValueError("to_torch: the layer is not built yet; call it once, or build it with its input shapes")
    config = layer.get_config()
    for name, expected in (
        ("value_dim", layer.key_dim), ("output_shape", None), ("use_gate", False), ("sliding_window", None),
    ):  # fmt: skip
        if config[name] != expected:
            raise UnsupportedError(
                f"to_torch: got {name}={config[name]!r}; relattn.nn.RelativeMultiheadAttention has only "
                f"{name}={expected!r}"
            )
    if len(layer.query_dense.kernel.shape) != 3 or len(config["attention_axes"]) != 1:
        raise UnsupportedError("to_torch: got several attention axes; relattn.nn.RelativeMultiheadAttention has one")
    widths = [dense.kernel.shape[0] for dense in (layer.query_dense, layer.key_dense, layer.value_dense)]
    module = RelativeMultiheadAttention(
        widths[0],
        layer.num_heads,
        None if layer.encoding is None else _encoding_to_torch(layer.encoding),
        head_dim=layer.key_dim,
        dropout=layer.dropout,
        bias=layer.use_bias,
        kdim=widths[1],
        vdim=widths[2],
        scale=layer.scale,
    )
    for theirs, ours in PROJECTIONS.items():
        linear, dense = getattr(module, theirs), getattr(layer, ours)
        linear.weight.data = _tensor(dense.kernel).reshape(*linear.weight.shape[::-1]).T.contiguous()
        if layer.use_bias:
            linear.bias.data = _tensor(dense.bias).reshape(-1)
    return module


def projection_to_torch(layer: RelativePositionalEmbedding | Attention) -> relattn.RelativeEmbedding:
    """The RelativeEmbedding whose row of offset d is the column sequence_length - 1 - d of the layer's `projection`.

    layer: either of the article's. relative_attention(query, key, value, encoding=it) computes the same as
        Attention(key, value, query). It needs torch.

    Raises TypeError: for another layer.
    """
    import relattn

    embedding = _embedding_of("projection_to_torch", layer)
    if not embedding.built:
        embedding.build(None)
    module = relattn.RelativeEmbedding(embedding.head_size, embedding.sequence_length)
    module.relative_keys.data = _tensor(embedding.projection).flip(1).T.contiguous()[None]
    return module


def projection_from_torch(module: relattn.RelativeEmbedding, layer: RelativePositionalEmbedding | Attention) -> None:
    """Gives a layer of the article the rows of a module as its `projection`: the inverse of `projection_to_torch`.

    module: with one table for all heads, and as many rows as the layer has columns. layer: is changed in place.

    Raises TypeError: for another module or layer; ValueError: for a module whose number of rows is not the layer's
    number of columns, and for a module with one table per head, without a future, or with a rule beyond its rows.
    """
    import relattn

    embedding = _embedding_of("projection_from_torch", layer)
    if not isinstance(module, relattn.RelativeEmbedding):
        raise TypeError(f"projection_from_torch: got {kind_of(module)}; expected a relattn.RelativeEmbedding")
    expected = {"head_dim": embedding.head_size, "max_length": embedding.sequence_length, "causal": False}
    expected["beyond"] = "error"
    for name, value in expected.items():
        if getattr(module, name) != value:
            raise ValueError(
                f"projection_from_torch: got a RelativeEmbedding with {name}={getattr(module, name)!r}; expected "
                f"{value!r}, as the layer has it"
            )
    if module.relative_keys.shape[0] != 1:
        raise ValueError(
            f"projection_from_torch: got a RelativeEmbedding with num_heads={module.num_heads}; expected None, for the "
            "layer has one projection for all heads"
        )
    if not embedding.built:
        embedding.build(None)
    embedding.projection.assign(_array(module.relative_keys)[0].T[:, ::-1])


def _embedding_of(name: str, layer: Any) -> Any:
    if isinstance(layer, layers.Attention):
        return layer.embedding
    if isinstance(layer, layers.RelativePositionalEmbedding):
        return layer
    raise TypeError(
        f"{name}: got {kind_of(layer)}; expected a RelativePositionalEmbedding or Attention of relattn.keras"
    )


def _weight_name(parameter_name: str) -> str:
    """The name of a weight here: the parameter's name without dots, which Keras on torch does not take."""
    return parameter_name.replace(".", "_")


# NumPy has no bfloat16; float32 holds its numbers exactly.


def _dtype_name(parameter: Any) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def _array(parameter: Any) -> np.ndarray:
    """A module's parameter, to be assigned to a weight of its dtype."""
    import torch

    return (parameter.float() if parameter.dtype == torch.bfloat16 else parameter).detach().cpu().numpy()


def _tensor(weight: Any) -> Any:
    """A copy of a layer's weight, in its dtype."""
    import torch

    dtype = keras.backend.standardize_dtype(weight.dtype)
    numbers = np.array(ops.convert_to_numpy(weight), dtype="float32" if dtype == "bfloat16" else dtype)
    return torch.from_numpy(numbers).to(getattr(torch, dtype))
