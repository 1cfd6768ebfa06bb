"""RETURNN's rf.RelPosSelfAttention and RelPosCausalSelfAttention (its frontend)."""

from __future__ import annotations

import torch
from torch import Tensor

from relattn.convert import returnn_key_shift, transfo_xl
from relattn.convert.format import Format, MismatchError, Tensors
from relattn.convert.weights import check_odd, fuse_heads, identity_like, is_identity, q_k_v, shared_table, split_heads
from relattn.encodings.base import RelativeEncoding

LEARNED = "learned_pos_emb.pos_emb"
PROJECTED = "linear_pos.weight"
BIASES = ("pos_bias_u", "pos_bias_v")


def _read(theirs: Tensors) -> dict[str, Tensor]:
    """[in, out] to [out, in], and for each head its query, key and value; see `_their_encoding`."""
    encoding, head_dim = _their_encoding(theirs)
    ours = {}
    for part, tensor in (("weight", theirs["qkv.weight"].T), ("bias", theirs.get("qkv.bias"))):
        if tensor is not None:
            if tensor.shape[0] % (3 * head_dim):
                raise MismatchError(
                    f"has qkv.{part} for {tensor.shape[0]} features with heads of width {head_dim}; expected a "
                    f"multiple of {3 * head_dim}: queries, keys and values of one width"
                )
            q, k, v = split_heads(tensor, head_dim)
            ours |= {f"q_proj.{part}": q, f"k_proj.{part}": k, f"v_proj.{part}": v}
    if "proj.weight" in theirs:
        ours["out_proj.weight"] = theirs["proj.weight"].T
        out_bias = theirs.get("proj.bias")
    else:
        ours["out_proj.weight"] = identity_like(ours["q_proj.weight"])
        out_bias = torch.zeros_like(ours["q_proj.bias"]) if "qkv.bias" in theirs else None
    if out_bias is not None:
        ours["out_proj.bias"] = out_bias
    return ours | encoding


def _their_encoding(theirs: Tensors) -> tuple[dict[str, Tensor], int]:
    """Our encoding's parameters, and the width of a head.

    Their sinusoids are of j - i, those of Dai et al. of i - j, the sines first. A sine is odd, so the first half of W
    changes its sign. Learned rows are the same as ours.
    """
    has = {name for name in (PROJECTED, LEARNED, *BIASES) if name in theirs}
    if has == {PROJECTED, *BIASES}:
        num_heads, head_dim = theirs["pos_bias_u"].shape
        weight = theirs[PROJECTED]
        if weight.shape[1] != num_heads * head_dim:
            raise MismatchError(
                f"has linear_pos.weight of shape {list(weight.shape)}, one projection for all heads; ours has one for "
                f"each (separate_pos_emb_per_head=True): [in, {num_heads * head_dim}]"
            )
        own = {f"encoding.{name}": theirs[name] for name in BIASES}
        return own | {"encoding.linear_pos.weight": _minus_sines(weight.T)}, head_dim
    if has == {LEARNED}:
        rows = theirs[LEARNED]
        check_odd(LEARNED, rows)
        if rows.shape[1] * 3 >= theirs["qkv.weight"].shape[1]:
            raise MismatchError(
                f"has learned_pos_emb.pos_emb of shape {list(rows.shape)}, rows as wide as all heads together "
                "(separate_pos_emb_per_head=True), which does not tell the number of heads"
            )
        return {"encoding.relative_keys": rows.unsqueeze(0)}, rows.shape[1]
    raise MismatchError(
        f"has {', '.join(sorted(has))} together, which no encoding of relattn holds; expected linear_pos, pos_bias_u "
        "and pos_bias_v (Transformer-XL), or learned_pos_emb alone (Shaw)"
    )


def _write(ours: Tensors) -> dict[str, Tensor]:
    _, head_dim = _model(ours)
    theirs = {}
    for part in ("weight", "bias"):
        if f"q_proj.{part}" in ours:
            fused = fuse_heads(*q_k_v(ours, part), head_dim)
            theirs[f"qkv.{part}"] = fused.T if part == "weight" else fused
    if not is_identity(ours):
        theirs["proj.weight"] = ours["out_proj.weight"].T
        if "out_proj.bias" in ours:
            theirs["proj.bias"] = ours["out_proj.bias"]
    if "encoding.relative_keys" not in ours:
        own = {name: ours[f"encoding.{name}"] for name in BIASES}
        return theirs | own | {PROJECTED: _minus_sines(ours["encoding.linear_pos.weight"]).T}
    table = shared_table("encoding.relative_keys", ours["encoding.relative_keys"], "RETURNN's learned_pos_emb")
    if table.shape[1] == ours["q_proj.weight"].shape[0]:
        raise MismatchError(
            "has one head with learned rows, and learned_pos_emb then looks as if several heads had rows of their own "
            "(separate_pos_emb_per_head=True); give it two heads or more"
        )
    return theirs | {LEARNED: table}


def _minus_sines(weight: Tensor) -> Tensor:
    """W [out, in] for sinusoids with the opposite sign."""
    half = weight.shape[1] // 2
    return torch.cat([-weight[:, :half], weight[:, half:]], dim=1)


def _model(ours: Tensors) -> tuple[RelativeEncoding, int]:
    return (returnn_key_shift if "encoding.relative_keys" in ours else transfo_xl).model(ours)


REL_POS = Format(
    name="returnn_rel_pos",
    about="rf.RelPosSelfAttention and RelPosCausalSelfAttention (RETURNN's frontend)",
    anchors=(PROJECTED, LEARNED),
    needs={"qkv.weight": (2,)},
    may={"qkv.bias": (1,), "proj.bias": (1,)} | dict.fromkeys(("proj.weight", PROJECTED, LEARNED, *BIASES), (2,)),
    takes=(transfo_xl.TAKES, {"relative_keys": (3,)}),
    read=_read,
    write=_write,
    model=_model,
    note="RelPosCausalSelfAttention has the same parameters: attend with is_causal=True.",
)
