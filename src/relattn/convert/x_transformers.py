"""x-transformers with rel_pos_bias=True: T5's bias, one for all layers of a stack."""

from __future__ import annotations

import re
from collections.abc import Collection

from torch import Tensor

from relattn.convert.format import Format, MismatchError, Tensors
from relattn.convert.weights import identity_like, is_identity, refuse_biases
from relattn.encodings.t5 import T5Bias

PROJECTIONS = ("to_q", "to_k", "to_v", "to_out")
OUT = "to_out.weight"
TABLE = "rel_pos.relative_attention_bias.weight"
IN_A_STACK = re.compile(r"(?P<stack>(.*\.)?)layers\.(?P<number>\d+)\.1\.$")


def _read(theirs: Tensors) -> dict[str, Tensor]:
    """The bias is multiplied by sqrt(dim_head) there; query head n shares the keys of n modulo the key heads.

    One head alone has no output projection there.
    """
    table, q, k = theirs[TABLE], theirs["to_q.weight"], theirs["to_k.weight"]
    heads = table.shape[1]
    if heads > 1 and OUT not in theirs:
        raise MismatchError(f"has no {OUT} beside a bias for {heads} heads; only one head can do without")
    out = theirs.get(OUT, identity_like(q))
    if q.shape[0] % heads or q.shape[0] % k.shape[0] or out.shape[1] != q.shape[0]:
        raise MismatchError(
            f"has to_q.weight {list(q.shape)}, to_k.weight {list(k.shape)} and to_out.weight {list(out.shape)} beside "
            f"a bias for {heads} heads; expected one width of queries, keys and values in every head"
        )
    groups, width = q.shape[0] // k.shape[0], q.shape[0] // heads
    return {
        "q_proj.weight": _reordered(q, groups, -1, width),
        "k_proj.weight": k,
        "v_proj.weight": theirs["to_v.weight"],
        "out_proj.weight": _reordered(out.T, groups, -1, width).T,
        "encoding.bias": _reordered(table.T, groups, -1, 1).T * width**0.5,
    }


def _write(ours: Tensors) -> dict[str, Tensor]:
    refuse_biases(ours, "x-transformers' Attention")
    table, q, k = ours["encoding.bias"], ours["q_proj.weight"], ours["k_proj.weight"]
    groups, width = q.shape[0] // k.shape[0], q.shape[0] // table.shape[1]
    theirs = {
        "to_q.weight": _reordered(q, -1, groups, width),
        "to_k.weight": k,
        "to_v.weight": ours["v_proj.weight"],
        TABLE: _reordered(table.T, -1, groups, 1).T / width**0.5,
    }
    if table.shape[1] == 1 and is_identity(ours):
        return theirs
    return theirs | {OUT: _reordered(ours["out_proj.weight"].T, -1, groups, width).T}


def _reordered(rows: Tensor, *sizes: int) -> Tensor:
    """Heads of rows, the last of the sizes. (groups, -1, width): those that share a key head, one in every len /
    groups, become neighbours. (-1, groups, width): the way back.
    """
    return rows.unflatten(0, sizes).transpose(0, 1).flatten(0, 2)


def _model(ours: Tensors) -> tuple[T5Bias, int]:
    num_buckets, num_heads = ours["encoding.bias"].shape
    features = ours["q_proj.weight"].shape[0]
    if num_buckets % 4 or features % num_heads:
        raise MismatchError(
            f"has a bias of {num_buckets} buckets and {num_heads} heads beside {features} features of queries; "
            "expected a multiple of four buckets, and a multiple of the heads"
        )
    return T5Bias(num_heads, num_buckets=num_buckets), features // num_heads


def _bias_of_the_stack(names: Collection[str], layer: str) -> dict[str, str]:
    """The stack's only bias; ValueError where cross-attention, which has no bias, may be among the layers."""
    placed = IN_A_STACK.match(layer)
    if placed is None:
        return {}
    stack, number = placed["stack"], int(placed["number"])
    if f"{stack}layers.{number + 1}.1.to_q.weight" in names:
        raise MismatchError(
            "is followed by another attention layer; with cross_attend every second one has no bias, and the names do "
            "not tell them apart; leave the cross-attention out of the checkpoint"
        )
    return {TABLE: stack + TABLE}


def _place(layer: str, local: str) -> str:
    placed = IN_A_STACK.match(layer)
    return placed["stack"] + local if placed and local == TABLE else layer + local


X_TRANSFORMERS = Format(
    name="x_transformers_t5",
    about="Attention in a stack with rel_pos_bias=True (x-transformers)",
    anchors=("to_q.weight",),
    needs=dict.fromkeys((*(f"{name}.weight" for name in PROJECTIONS[:3]), TABLE), (2,)),
    may={OUT: (2,)},
    takes=({"bias": (2,)},),
    read=_read,
    write=_write,
    model=_model,
    outside=_bias_of_the_stack,
    place=_place,
    note="T5Bias takes max_distance from the config, and bidirectional=False for a Decoder, which is causal.",
)
