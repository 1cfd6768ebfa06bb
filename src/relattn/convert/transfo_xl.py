"""Transformer-XL (Dai et al.'s PyTorch code, and transfo_xl in transformers 4)."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from relattn.convert.format import Axes, Format, MismatchError, Tensors
from relattn.convert.weights import q_k_v, refuse_biases
from relattn.encodings.transformer_xl import TransformerXLEmbedding

FUSED, POSITIONS = "qkv_net.weight", "r_net.weight"
RENAMED = {
    "o_net.weight": "out_proj.weight",
    POSITIONS: "encoding.linear_pos.weight",
    "r_w_bias": "encoding.pos_bias_u",
    "r_r_bias": "encoding.pos_bias_v",
}
TAKES: Axes = dict.fromkeys(("linear_pos.weight", "pos_bias_u", "pos_bias_v"), (2,))


def _read(theirs: Tensors) -> dict[str, Tensor]:
    """All queries, then all keys, then all values in one projection; the rest equals ours under other names."""
    if theirs[FUSED].shape[0] % 3:
        raise MismatchError(f"has {FUSED} of shape {list(theirs[FUSED].shape)}; expected [3 * heads * width, d_model]")
    q, k, v = theirs[FUSED].chunk(3)
    own = {ours: theirs[name] for name, ours in RENAMED.items()}
    return {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, **own}


def _write(ours: Tensors) -> dict[str, Tensor]:
    refuse_biases(ours, "Transformer-XL")
    return {FUSED: torch.cat(q_k_v(ours)), **{name: ours[mine] for name, mine in RENAMED.items()}}


def model(ours: Tensors) -> tuple[TransformerXLEmbedding, int]:
    """By the biases [heads, width] and the width of the sinusoids."""
    num_heads, head_dim = ours["encoding.pos_bias_u"].shape
    embed_dim = ours["encoding.linear_pos.weight"].shape[1]
    if embed_dim % 2:
        raise MismatchError(f"projects sinusoids of width {embed_dim}; expected an even width")
    return TransformerXLEmbedding(num_heads, head_dim, embed_dim=embed_dim), head_dim


def _shared_biases(names: Collection[str], layer: str) -> dict[str, str]:
    """Biases that all layers share (untie_r=False) stand once, further up, in the nearest module that has them."""
    found = {}
    for bias in ("r_w_bias", "r_r_bias"):
        above = layer
        while layer + bias not in names and above and bias not in found:
            above = above[:-1].rpartition(".")[0]
            above = above and above + "."
            if above + bias in names:
                found[bias] = above + bias
    return found


TRANSFO_XL = Format(
    name="transfo_xl",
    about="RelPartialLearnableMultiHeadAttn: Dai et al.'s code, TransfoXLModel (transformers 4)",
    anchors=(FUSED, POSITIONS),
    needs=dict.fromkeys((FUSED, *RENAMED), (2,)),
    stays=("layer_norm.",),
    takes=(TAKES,),
    read=_read,
    write=_write,
    model=model,
    outside=_shared_biases,
    note="Attend with is_causal=True; pre_lnorm and clamp_len stand in the config, and ours has no clamp_len.",
)
