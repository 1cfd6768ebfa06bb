"""Finds the layers of a checkpoint, complete and with the right shapes; and the messages where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from relattn.convert import bert, returnn_key_shift, returnn_rel_pos, tensor2tensor, transfo_xl, x_transformers
from relattn.convert.format import Axes, Format, MismatchError, Tensors, layers_in
from relattn.convert.weights import PROJECTIONS

_ALL = (
    bert.RELATIVE_KEY, bert.RELATIVE_KEY_QUERY, transfo_xl.TRANSFO_XL, tensor2tensor.RELATIVE,
    tensor2tensor.RELATIVE_V2, tensor2tensor.UNMASKED_RELATIVE_V2, returnn_key_shift.KEY_SHIFT,
    returnn_rel_pos.REL_POS, x_transformers.X_TRANSFORMERS,
)  # fmt: skip
FORMATS: dict[str, Format] = {one.name: one for one in _ALL}
"""What `to_relattn` takes as its source and `from_relattn` as its target, by name."""

OURS: Axes = {f"{name}.{part}": axes for name in PROJECTIONS for part, axes in (("weight", (2,)), ("bias", (1,)))}


@contextmanager
def name_layer_in_errors(layer: str) -> Iterator[None]:
    """A MismatchError becomes the error that names the layer."""
    try:
        yield
    except MismatchError as why:
        raise ValueError(f"checkpoint: layer {layer.rstrip('./')!r} {why}") from None


def their_layers(state: Tensors, form: Format) -> dict[str, dict[str, str]]:
    """For every layer the local names of its parameters, and their names in the checkpoint."""
    found = layers_in(state, form.anchors)
    if not found:
        raise ValueError(_nothing_found(state, form.name, form.anchors))
    known, of_layers = {**form.needs, **form.may}, {}
    for layer in found:
        with name_layer_in_errors(layer):
            below = [name.removeprefix(layer) for name in state if name.startswith(layer)]
            own = {local: layer + local for local in below if local in known}
            names = of_layers[layer] = {**form.outside(state.keys(), layer), **own}
            missing = [local for local in form.needs if local not in names]
            if missing:
                raise MismatchError(f"has no {', '.join(missing)}, which {form.name} needs")
            strange = [local for local in below if local not in known and not local.startswith(form.stays)]
            if strange:
                raise MismatchError(f"has also {', '.join(strange)}, which {form.name} has no part for")
            check_axes({local: state[name] for local, name in names.items()}, known)
    return of_layers


def our_layers(state: Tensors, form: Format) -> dict[str, dict[str, str]]:
    """The same of every RelativeMultiheadAttention with an encoding, if this format holds all of these."""
    found = {}
    candidates = layers_in(state, ("q_proj.weight",))
    for layer in candidates:
        below = [name.removeprefix(layer) for name in state if name.startswith(layer)]
        own = [local for local in below if local.startswith("encoding.")]
        if not own:
            continue
        with name_layer_in_errors(layer):
            missing = [f"{name}.weight" for name in PROJECTIONS if f"{name}.weight" not in below]
            if missing:
                raise MismatchError(f"has no {', '.join(missing)}, which RelativeMultiheadAttention needs")
            axes = [takes for takes in form.takes if {f"encoding.{one}" for one in takes} == set(own)]
            if not axes:
                expected = " or ".join(", ".join(f"encoding.{one}" for one in takes) for takes in form.takes)
                raise MismatchError(f"has {', '.join(own)}; {form.name} holds {expected}")
            found[layer] = {local: layer + local for local in below if local in OURS or local in own}
            known = {**OURS, **{f"encoding.{one}": dims for one, dims in axes[0].items()}}
            check_axes({local: state[name] for local, name in found[layer].items()}, known)
    if not found and candidates:
        raise ValueError(
            f"checkpoint: got relattn's attention layers ({candidates[0]}q_proj.weight; {len(candidates)} in all) "
            f"without parameters of an encoding (encoding.*); expected some, for {form.name} holds them"
        )
    if not found:
        raise ValueError(_nothing_found(state, "relattn", ("q_proj.weight", "encoding.*")))
    return found


def _nothing_found(state: Tensors, wanted: str, anchors: tuple[str, ...]) -> str:
    """The expected names, the names that came, and the format to which they may belong."""
    likely = [form.name for form in FORMATS.values() if layers_in(state, form.anchors)]
    guess = f"it may be {' or '.join(likely)}" if likely else f"the formats are {', '.join(FORMATS)}"
    came = f"{len(state)} names such as {', '.join(list(state)[:3])}" if state else "no names"
    endings = " or ".join(anchors)
    return (
        f"checkpoint: no attention layer of {wanted} in it; looked for names ending in {endings}; got {came}; {guess}"
    )


def check_axes(tensors: Tensors, axes: Axes) -> None:
    """Floats, with as many axes as their name requires, and no empty axis; MismatchError otherwise."""
    for name, tensor in tensors.items():
        if tensor.dim() not in axes[name] or 0 in tensor.shape or not tensor.is_floating_point():
            expected = " or ".join(map(str, axes[name]))
            raise MismatchError(
                f"has {name} of shape {list(tensor.shape)} and {tensor.dtype}; expected floats with {expected} axes, "
                "none of them empty"
            )
