"""Weights between the PyTorch modules of relattn and the layers here, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from relattn.errors import UnsupportedError
from relattn.keras.alibi import AlibiBias
from relattn.keras.attention import RelativeMultiHeadAttention
from relattn.keras.encoding import RelativeEncoding
from relattn.keras.installed import keras, ops
from relattn.keras.relative import RelativePositionalEmbedding
from relattn.keras.rotary import RotaryEmbedding
from relattn.keras.shaw import ShawRelativeEmbedding
from relattn.keras.t5 import T5RelativeBias
from relattn.keras.transformer_xl import TransformerXLRelativeEmbedding
from relattn.rope_scaling import BY_LENGTH

if TYPE_CHECKING:
    from torch import nn

PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}


def from_torch(module: nn.Module) -> RelativeEncoding | RelativeMultiHeadAttention:
    """The layer that computes what `module` computes: an encoding of relattn, or relattn.nn.RelativeMultiheadAttention.

    The layer holds a copy of the weights, in their dtype. Needs torch, whatever Keras' backend.

    Raises TypeError for another module, UnsupportedError for one that has no counterpart here: a sum of encodings,
    grouped queries, or a RelativeEmbedding that clamps or zeroes beyond its rows.
    """
    from relattn.nn import RelativeMultiheadAttention

    if isinstance(module, RelativeMultiheadAttention):
        return _attention_from_torch(module)
    layer = _encoding_from_torch(module)
    layer.build(None)
    _assign(layer, {name.removesuffix(".weight"): _array(parameter) for name, parameter in module.named_parameters()})
    return layer


def to_torch(layer: RelativeEncoding | RelativeMultiHeadAttention) -> nn.Module:
    """The PyTorch module that computes what `layer` computes, with a copy of its weights; inverse of `from_torch`.

    A layer that has not been built yet is built, where its sizes are known; a RelativeMultiHeadAttention must have seen
    its inputs.

    Raises TypeError for another layer, ValueError for one that is not built, UnsupportedError for one that has no
    counterpart: `value_dim` other than `key_dim`, an `output_shape`, a gate, a sliding window, several attention axes.
    """
    if isinstance(layer, RelativeMultiHeadAttention):
        return _attention_to_torch(layer)
    module = _encoding_to_torch(layer)
    if not layer.built:
        layer.build(None)
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        parameter.data = _tensor(getattr(layer, name.removesuffix(".weight")))
    return module


def _encoding_from_torch(module: nn.Module) -> RelativeEncoding:
    """A layer with the arguments of a module, its weights not made yet."""
    import relattn

    parameter = next(module.parameters(), None)
    dtype: dict[str, Any] = {} if parameter is None else {"dtype": str(parameter.dtype).removeprefix("torch.")}
    if isinstance(module, relattn.RelativeEmbedding):
        if module.beyond != "refuse":
            raise UnsupportedError(
                f"from_torch: got a RelativeEmbedding with beyond={module.beyond!r}; RelativePositionalEmbedding "
                "refuses offsets beyond its rows, as beyond='refuse' does"
            )
        return RelativePositionalEmbedding(
            module.head_dim, module.max_length, num_heads=module.num_heads, causal=module.causal, **dtype
        )
    if isinstance(module, relattn.ShawEmbedding):
        return ShawRelativeEmbedding(
            module.head_dim,
            (module.left, module.right),
            num_heads=module.num_heads,
            values=module.relative_values is not None,
            **dtype,
        )
    if isinstance(module, relattn.TransformerXLEmbedding):
        return TransformerXLRelativeEmbedding(
            module.num_heads,
            module.head_dim,
            embed_dim=None if module.max_length is not None else module.embed_dim,
            interleaved=module.interleaved,
            sequence_length=module.max_length,
            **dtype,
        )
    if isinstance(module, relattn.T5Bias):
        return T5RelativeBias(
            module.num_heads,
            num_buckets=module.num_buckets,
            max_distance=module.max_distance,
            bidirectional=module.bidirectional,
            **dtype,
        )
    if isinstance(module, relattn.AlibiBias) and module.slopes is None and not module.signed:
        return AlibiBias(module.num_heads)
    if isinstance(module, relattn.RotaryEmbedding) and (module.scaling or {}).get("rope_type") not in BY_LENGTH:
        return RotaryEmbedding(
            module.head_dim,
            base=module.base,
            rotary_dim=module.rotary_dim,
            interleaved=module.interleaved,
            scaling=module.scaling,
        )
    if isinstance(module, relattn.RelativeEncoding):
        raise UnsupportedError(f"from_torch: got a {type(module).__name__}, which has no counterpart in relattn.keras")
    raise TypeError(
        f"from_torch: got {type(module).__name__}; expected an encoding of relattn or "
        "relattn.nn.RelativeMultiheadAttention"
    )


def _encoding_to_torch(layer: RelativeEncoding) -> nn.Module:
    """A module with the arguments of a layer, its weights not copied yet."""
    import relattn

    if isinstance(layer, RelativePositionalEmbedding):
        return relattn.RelativeEmbedding(
            layer.head_size, layer.sequence_length, num_heads=layer.num_heads, causal=layer.causal
        )
    if isinstance(layer, ShawRelativeEmbedding):
        return relattn.ShawEmbedding(
            layer.head_size, (layer.left, layer.right), num_heads=layer.num_heads, values=layer.values
        )
    if isinstance(layer, TransformerXLRelativeEmbedding):
        return relattn.TransformerXLEmbedding(
            layer.num_heads,
            layer.head_size,
            embed_dim=layer.embed_dim,
            interleaved=layer.interleaved,
            max_length=layer.sequence_length,
        )
    if isinstance(layer, T5RelativeBias):
        return relattn.T5Bias(
            layer.num_heads,
            num_buckets=layer.num_buckets,
            max_distance=layer.max_distance,
            bidirectional=layer.bidirectional,
        )
    if isinstance(layer, AlibiBias):
        return relattn.AlibiBias(layer.num_heads)
    if isinstance(layer, RotaryEmbedding):
        return relattn.RotaryEmbedding(
            layer.head_size,
            base=layer.base,
            rotary_dim=layer.rotary_dim,
            interleaved=layer.interleaved,
            scaling=layer.scaling,
        )
    raise TypeError(
        f"to_torch: got {type(layer).__name__}; expected an encoding of relattn.keras or RelativeMultiHeadAttention"
    )


def _attention_from_torch(module: Any) -> RelativeMultiHeadAttention:
    if module.num_kv_heads != module.num_heads:
        raise UnsupportedError(
            f"from_torch: got num_kv_heads={module.num_kv_heads} with num_heads={module.num_heads}; "
            "RelativeMultiHeadAttention has no grouped queries"
        )
    weight = module.q_proj.weight
    layer = RelativeMultiHeadAttention(
        module.num_heads,
        module.head_dim,
        dropout=module.dropout,
        use_bias=module.q_proj.bias is not None,
        encoding=None if module.encoding is None else from_torch(module.encoding),  # pyright: ignore
        scale=module.scale,
        dtype=str(weight.dtype).removeprefix("torch."),
    )
    widths = (module.embed_dim, module.v_proj.in_features, module.k_proj.in_features)
    layer.build(*((None, None, width) for width in widths))
    heads = (module.num_heads, module.head_dim)
    for theirs, ours in PROJECTIONS.items():
        linear, dense = getattr(module, theirs), getattr(layer, f"{ours}_dense")
        shape = (*heads, -1) if ours == "output" else (-1, *heads)
        dense.kernel.assign(_array(linear.weight).T.reshape(shape))
        if linear.bias is not None:
            bias = _array(linear.bias)
            dense.bias.assign(bias if ours == "output" else bias.reshape(heads))
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
        None if layer.encoding is None else to_torch(layer.encoding),  # pyright: ignore
        head_dim=layer.key_dim,
        dropout=layer.dropout,
        bias=layer.use_bias,
        kdim=widths[1],
        vdim=widths[2],
        scale=layer.scale,
    )
    for theirs, ours in PROJECTIONS.items():
        linear, dense = getattr(module, theirs), getattr(layer, f"{ours}_dense")
        kernel = _tensor(dense.kernel)
        kernel = kernel.reshape(-1, kernel.shape[-1]) if ours == "output" else kernel.reshape(kernel.shape[0], -1)
        linear.weight.data = kernel.T.contiguous()
        if layer.use_bias:
            linear.bias.data = _tensor(dense.bias).reshape(-1)
    return module


def _assign(layer: RelativeEncoding, arrays: dict[str, np.ndarray]) -> None:
    """Every weight of the layer from the array of its name."""
    for weight in layer.weights:
        weight.assign(arrays[weight.name])


# NumPy has no bfloat16; float32 holds its numbers exactly.


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
