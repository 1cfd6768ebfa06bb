"""Whole checkpoints: every attention layer is found, converted and checked; the rest is handed on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from relattn.checks.values import check_choice, kind_of
from relattn.convert.finding import FORMATS, name_layer_in_errors, our_layers, their_layers
from relattn.convert.format import Format, MismatchError, Tensors
from relattn.encodings.base import RelativeEncoding
from relattn.nn import RelativeMultiheadAttention


def to_relattn(checkpoint: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Every attention layer of format `source` as the parameters of a RelativeMultiheadAttention, all else as it is.

    checkpoint: tensors by name, such as a state_dict, of a whole model or of one layer. A layer keeps its prefix:
        parameters under "encoder.layer.0.attention." are still there, as q_proj.weight, k_proj.weight, v_proj.weight,
        out_proj.weight, their biases, and encoding.*. Dtypes and devices stay. Converted tensors are copied; others are
        not.
    source: a name in `FORMATS`.

    Raises ValueError: where there is no such layer, where a layer is not complete, and for parameters without a
        counterpart in relattn.
    """
    form = _form("source", source, checkpoint)
    result, used = {}, set()
    for layer, names in their_layers(checkpoint, form).items():
        ours = _read(checkpoint, form, layer, names)
        result |= _new(result, layer, {layer + name: one for name, one in ours.items()})
        used.update(names.values())
    return _merge(checkpoint, used, result)


def from_relattn(checkpoint: Mapping[str, Tensor], target: str) -> dict[str, Tensor]:
    """The way back from `to_relattn`: every RelativeMultiheadAttention with an encoding, in format `target`.

    checkpoint: as `to_relattn` returns it. target: a name in `FORMATS`.

    Raises ValueError: where there is no such layer, where `target` holds another encoding, and for parameters that it
    cannot hold.
    """
    form = _form("target", target, checkpoint)
    result, used = {}, set()
    for layer, names in our_layers(checkpoint, form).items():
        with name_layer_in_errors(layer):
            ours = {local: checkpoint[name] for local, name in names.items()}
            _model(form, ours)
            theirs = form.write(ours)
        result |= _new(result, layer, {form.place(layer, name): one for name, one in theirs.items()})
        used.update(names.values())
    return _merge(checkpoint, used, result)


def layers(
    checkpoint: Mapping[str, Tensor], source: str, encoding: Callable[[], RelativeEncoding] | None = None
) -> dict[str, RelativeMultiheadAttention]:
    """Every attention layer of format `source` as a module with copies of its weights, by its name.

    checkpoint, source: as in `to_relattn`.
    encoding: makes one layer's encoding, a new one at each call, if the checkpoint does not describe all of it
        (x_transformers_t5: direction and max_distance, which are T5Bias's defaults if not given).

    Raises ValueError: as `to_relattn` does, and for an encoding of other parameters.
    """
    form = _form("source", source, checkpoint)
    made = {}
    for layer, names in their_layers(checkpoint, form).items():
        ours = _copies(_read(checkpoint, form, layer, names))
        with name_layer_in_errors(layer):
            module = _model(form, ours, encoding)
        module.load_state_dict(ours, assign=True)
        made[layer.rstrip("./")] = module
    return made


def _form(argument: str, name: str, checkpoint: object) -> Format:
    """The format of that name, once the checkpoint is checked, too."""
    check_choice(argument, name, FORMATS)
    pairs = checkpoint.items() if isinstance(checkpoint, Mapping) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in pairs):
        raise TypeError(
            f"checkpoint: got {kind_of(checkpoint)}; expected tensors by name, such as a state_dict, and nothing "
            "else in it"
        )
    return FORMATS[name]


def _read(state: Tensors, form: Format, layer: str, names: dict[str, str]) -> dict[str, Tensor]:
    with name_layer_in_errors(layer):
        ours = form.read({local: state[name] for local, name in names.items()})
        _model(form, ours)
    return ours


def _model(
    form: Format, ours: Tensors, encoding: Callable[[], RelativeEncoding] | None = None
) -> RelativeMultiheadAttention:
    """The module that holds these parameters, without numbers; MismatchError where there is no such module."""
    q, k, v = (ours[f"{name}.weight"] for name in ("q_proj", "k_proj", "v_proj"))
    given = None if encoding is None else encoding()
    with torch.device("meta"):
        own, head_dim = form.model(ours)
        heads, kv_heads = q.shape[0] // head_dim, k.shape[0] // head_dim
        if q.shape[0] % head_dim or k.shape[0] % head_dim or heads % max(kv_heads, 1) or not kv_heads:
            raise MismatchError(
                f"projects to {q.shape[0]} features of queries and {k.shape[0]} of keys; expected heads of width "
                f"{head_dim}"
            )
        module = RelativeMultiheadAttention(
            q.shape[1], heads, own if given is None else given, num_kv_heads=kv_heads, head_dim=head_dim,
            bias="q_proj.bias" in ours, kdim=k.shape[1], vdim=v.shape[1],
        )  # fmt: skip
    expected = module.state_dict()
    for name in (*ours, *expected):
        came, needed = (list(one[name].shape) if name in one else "nothing" for one in (ours, expected))
        if came != needed:
            raise MismatchError(
                f"makes {name} {came}, and RelativeMultiheadAttention({q.shape[1]}, {heads}, head_dim={head_dim}) has "
                f"{needed}"
            )
    return module


def _new(result: Tensors, layer: str, made: Tensors) -> dict[str, Tensor]:
    """The copies of a layer's new parameters; ValueError where another layer gave the same name other numbers."""
    for name, tensor in made.items():
        if name in result and not torch.equal(result[name], tensor):
            raise ValueError(
                f"checkpoint: layer {layer.rstrip('./')!r} makes another {name} than a layer before it, and there is "
                "one for both"
            )
    return _copies(made)


def _copies(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _merge(state: Tensors, used: Collection[str], result: dict[str, Tensor]) -> dict[str, Tensor]:
    """The unchanged tensors, then the converted ones; ValueError where both have the same name."""
    passing = {name: tensor for name, tensor in state.items() if name not in used}
    both = sorted(passing.keys() & result.keys())
    if both:
        raise ValueError(f"checkpoint: {both[0]} is there already, beside what a layer becomes")
    return passing | result
