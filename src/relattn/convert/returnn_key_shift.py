"""RETURNN's SelfAttentionLayer whose key_shift is a RelativePositionalEncodingLayer (TensorFlow)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import takewhile

from torch import Tensor

from relattn.convert.format import Format, MismatchError, Tensors, layers_in
from relattn.convert.weights import (
    check_odd,
    encoding_of_table,
    fuse_heads,
    identity_like,
    is_identity,
    q_k_v,
    refuse_biases,
    shared_table,
    split_heads,
)
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.shaw import ShawEmbedding

FUSED, TABLE = "QKV", "encoding_matrix"
ATTENTION, POSITIONS = "_self_att_att/", "_rel_pos/"


def _read(theirs: Tensors) -> dict[str, Tensor]:
    """[in, out] to [out, in]; for each head its query, key and value; no output projection; the rows are ours."""
    fused, table = theirs[FUSED], theirs[TABLE]
    check_odd(TABLE, table)
    head_dim = table.shape[1]
    if fused.shape[1] % (3 * head_dim):
        raise MismatchError(
            f"has QKV of shape {list(fused.shape)} beside an encoding_matrix of width {head_dim}; expected [in, a "
            f"multiple of {3 * head_dim}]: queries, keys and values of one width (n_out=total_key_dim)"
        )
    q, k, v = split_heads(fused.T, head_dim)
    return {
        "q_proj.weight": q,
        "k_proj.weight": k,
        "v_proj.weight": v,
        "out_proj.weight": identity_like(q),
        "encoding.relative_keys": table.unsqueeze(0),
    }


def _write(ours: Tensors) -> dict[str, Tensor]:
    refuse_biases(ours, "SelfAttentionLayer")
    if not is_identity(ours):
        raise MismatchError(
            "has an out_proj that is not the identity, and SelfAttentionLayer has none; keep it in a layer of its own "
            "and give the identity here"
        )
    table = shared_table("encoding.relative_keys", ours["encoding.relative_keys"], "RETURNN's key_shift")
    return {FUSED: fuse_heads(*q_k_v(ours), table.shape[1]).T, TABLE: table}


def model(ours: Tensors) -> tuple[RelativeEncoding, int]:
    """Shaw's keys, clipped where the rows end."""
    check_odd("encoding.relative_keys", ours["encoding.relative_keys"])
    return encoding_of_table(
        ours, lambda width, rows, heads: ShawEmbedding(width, (rows - 1) // 2, num_heads=heads, values=False)
    )


def _common_prefix_length(layer: str, table: str) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(layer, table, strict=False))))


def _table_of(names: Collection[str], layer: str) -> dict[str, str]:
    """The encoding_matrix of a layer: the one whose name begins most like the layer's.

    Only the config says which matrix belongs to which layer. So the answer counts only if every layer gets another
    matrix.
    """
    layers = layers_in(names, (FUSED,))
    tables = [place + TABLE for place in layers_in(names, (TABLE,))]
    nearest = {one: max(tables, key=partial(_common_prefix_length, one), default="") for one in layers}
    if sorted(nearest.values()) != sorted(tables):
        raise MismatchError(
            f"does not say which encoding_matrix is its key_shift: there are {len(layers)} QKV and {len(tables)} "
            "encoding_matrix; give the layers one by one, each with its own"
        )
    return {TABLE: nearest[layer]}


def _place(layer: str, local: str) -> str:
    """The names of the two layers in RETURNN's documentation: x_self_att_att/QKV, x_rel_pos/encoding_matrix."""
    if local != TABLE or not layer:
        return layer + local
    return layer[:-1].removesuffix(ATTENTION[:-1]) + POSITIONS + TABLE


KEY_SHIFT = Format(
    name="returnn_key_shift",
    about="SelfAttentionLayer with key_shift from RelativePositionalEncodingLayer (RETURNN, TensorFlow)",
    anchors=(FUSED,),
    needs={FUSED: (2,), TABLE: (2,)},
    takes=({"relative_keys": (3,)},),
    read=_read,
    write=_write,
    model=model,
    outside=_table_of,
    place=_place,
    note="attention_left_only stands in the config: attend with is_causal=True.",
)
