"""Changes of weights that several formats need."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.convert.format import MismatchError, Tensors
from relattn.encodings.base import RelativeEncoding

Make = Callable[[int, int, int | None], RelativeEncoding]
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def q_k_v(ours: Tensors, part: str = "weight") -> tuple[Tensor, Tensor, Tensor]:
    """The weights, or the biases, of the three projections."""
    return ours[f"q_proj.{part}"], ours[f"k_proj.{part}"], ours[f"v_proj.{part}"]


def encoding_of_table(ours: Tensors, make: Make, name: str = "encoding.relative_keys") -> tuple[RelativeEncoding, int]:
    """make(head_dim, rows, num_heads) of a table, and the width of a head. One head is None: one table for all."""
    heads, rows, head_dim = ours[name].shape
    return make(head_dim, rows, heads if heads > 1 else None), head_dim


def renamed(tensors: Tensors, names: dict[str, str]) -> dict[str, Tensor]:
    """The parameters of modules (weight, bias) under other names, names[old] = new."""
    return {
        f"{new}.{part}": tensors[f"{old}.{part}"]
        for old, new in names.items()
        for part in ("weight", "bias")
        if f"{old}.{part}" in tensors
    }


def split_heads(
    fused: Float[Tensor, "H*3*D *E"], head_dim: int
) -> tuple[Float[Tensor, "H*D *E"], Float[Tensor, "H*D *E"], Float[Tensor, "H*D *E"]]:
    """Queries, keys and values from one projection that has them head by head, one after the other."""
    parts = fused.unflatten(0, (-1, 3, head_dim))
    return parts[:, 0].flatten(0, 1), parts[:, 1].flatten(0, 1), parts[:, 2].flatten(0, 1)


def fuse_heads(
    q: Float[Tensor, "H*D *E"], k: Float[Tensor, "H*D *E"], v: Float[Tensor, "H*D *E"], head_dim: int
) -> Float[Tensor, "H*3*D *E"]:
    """One projection that has query, key and value head by head, one after the other."""
    return torch.stack([part.unflatten(0, (-1, head_dim)) for part in (q, k, v)], dim=1).flatten(0, 2)


def identity_like(weight: Float[Tensor, "H*D E"]) -> Float[Tensor, "H*D H*D"]:
    """The output projection of a layer that has none."""
    return torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)


def is_identity(ours: Tensors) -> bool:
    """Whether out_proj is the identity."""
    weight, bias = ours["out_proj.weight"], ours.get("out_proj.bias")
    square = weight.shape[0] == weight.shape[1]
    return square and torch.equal(weight, identity_like(weight)) and (bias is None or not bias.any())


def refuse_biases(ours: Tensors, who: str) -> None:
    """MismatchError where a projection has a bias."""
    for name in PROJECTIONS:
        if f"{name}.bias" in ours:
            raise MismatchError(f"has {name}.bias, and {who} has no biases; train it with bias=False")


def check_odd(name: str, table: Float[Tensor, "*H R D"]) -> None:
    """One row for offset 0 and equally many on each side; MismatchError otherwise."""
    if table.shape[-2] % 2 == 0:
        raise MismatchError(
            f"has {name} of shape {list(table.shape)}; expected an odd number of rows, as many on either side"
        )


def shared_table(name: str, table: Float[Tensor, "H R D"], who: str) -> Float[Tensor, "R D"]:
    """The table that all heads share; MismatchError where each has its own."""
    if table.shape[0] != 1:
        raise MismatchError(
            f"has {name} of shape {list(table.shape)}, a table for each head, and {who} has one for all; make the "
            "encoding with num_heads=None"
        )
    return table.squeeze(0)
