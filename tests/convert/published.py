"""Each format's own attention layer, written from its source: of x [B, L, E] and a checkpoint's parameters.

The parameters come under their local names, in the dtype of x. Masks aside, nothing of the models around the layers.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Parameters = Mapping[str, Tensor]


def heads_of(features: Tensor, heads: int) -> Tensor:
    """[B, L, H * D] -> [B, H, L, D]."""
    return features.unflatten(-1, (heads, -1)).transpose(1, 2)


def merged(output: Tensor) -> Tensor:
    """The way back."""
    return output.transpose(1, 2).flatten(2)


def future(queries: int, keys: int) -> Tensor:
    """Whether a key comes after a query; the last key belongs to the last query."""
    return torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)


def bert(x: Tensor, p: Parameters, kind: str) -> Tensor:
    """transformers 4.40, models/bert/modeling_bert.py: BertSelfAttention, and the dense of BertSelfOutput."""
    table = p["self.distance_embedding.weight"]
    heads, furthest = x.shape[2] // table.shape[1], (table.shape[0] + 1) // 2
    query, key, value = (
        heads_of(F.linear(x, p[f"self.{one}.weight"], p[f"self.{one}.bias"]), heads)
        for one in ("query", "key", "value")
    )
    scores = query @ key.transpose(-1, -2)
    left, right = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])[None]
    rows = table[left - right + furthest - 1]
    scores = scores + torch.einsum("bhld,lrd->bhlr", query, rows)
    if kind == "relative_key_query":
        scores = scores + torch.einsum("bhrd,lrd->bhlr", key, rows)
    weights = torch.softmax(scores / table.shape[1] ** 0.5, dim=-1)
    return F.linear(merged(weights @ value), p["output.dense.weight"], p["output.dense.bias"])


def transformer_xl(w: Tensor, p: Parameters, memory: Tensor | None = None, clamp_len: float = torch.inf) -> Tensor:
    """transformers 4.30, models/transfo_xl: RelPartialLearnableMultiHeadAttn without its LayerNorm and residual."""
    heads, width = p["r_w_bias"].shape
    all_of_them = w if memory is None else torch.cat([memory, w], dim=1)
    query, key, value = (heads_of(one, heads) for one in (all_of_them @ p["qkv_net.weight"].T).chunk(3, dim=-1))
    queries, keys = w.shape[1], all_of_them.shape[1]
    query = query[:, :, -queries:]
    position = torch.arange(keys - 1, -1, -1.0, dtype=w.dtype).clamp(max=clamp_len)
    frequency = 1 / 10000 ** (torch.arange(0.0, w.shape[2], 2.0, dtype=w.dtype) / w.shape[2])
    angle = position[:, None] * frequency
    r = (torch.cat([angle.sin(), angle.cos()], dim=-1) @ p["r_net.weight"].T).unflatten(-1, (heads, width))
    content = torch.einsum("bnid,bnjd->bnij", query + p["r_w_bias"][:, None], key)
    place = torch.einsum("bnid,jnd->bnij", query + p["r_r_bias"][:, None], r)
    padded = F.pad(place, (1, 0)).flatten(2).unflatten(2, (keys + 1, queries))
    place = padded[:, :, 1:].flatten(2).unflatten(2, (queries, keys))  # the relative shift
    scores = ((content + place) * width**-0.5).masked_fill(future(queries, keys), -torch.inf)
    return merged(torch.softmax(scores, dim=-1) @ value) @ p["o_net.weight"].T


def tensor2tensor(x: Tensor, p: Parameters, attention_type: str, heads: int) -> Tensor:
    """common_attention.py: multihead_attention with vars_3d=False."""
    query, key, value = (heads_of(x @ p[f"{one}/kernel"], heads) for one in "qkv")
    query = query * query.shape[-1] ** -0.5
    length = x.shape[1]
    scores = query @ key.transpose(-1, -2)
    offset = torch.arange(length)[None] - torch.arange(length)[:, None]
    if attention_type == "dot_product_relative":
        keys, values = (
            p[f"dot_product_attention_relative/relative_positions_{one}/embeddings"] for one in ("keys", "values")
        )
        furthest = (keys.shape[0] - 1) // 2
        index = offset.clamp(-furthest, furthest) + furthest
        weights = torch.softmax(scores + torch.einsum("bhid,ijd->bhij", query, keys[index]), dim=-1)
        output = weights @ value + torch.einsum("bhij,ijd->bhid", weights, values[index])
        return merged(output) @ p["output_transform/kernel"]
    masked = attention_type == "dot_product_relative_v2"
    scope = "dot_product_self" if masked else "dot_product_unmasked_self"
    table = p[f"{scope}_attention_relative_v2/key_relative_embeddings"]
    table = table.expand(heads, -1, -1)
    reach = table.shape[1] if masked else (table.shape[1] + 1) // 2
    more = max(length - reach, 0)
    table = F.pad(table, (0, 0, more, 0 if masked else more))
    start = max(reach - length, 0)
    used = table[:, start : start + (length if masked else 2 * length - 1)]
    products = torch.einsum("bhid,hmd->bhim", query, used)
    if masked:
        padded = F.pad(products, (1, 0)).flatten(2).unflatten(2, (length + 1, length))
        scores = (scores + padded[:, :, 1:]).masked_fill(future(length, length), -torch.inf)
    else:
        scores = scores + products.gather(3, (offset + length - 1).expand(*products.shape[:2], -1, -1))
    return merged(torch.softmax(scores, dim=-1) @ value) @ p["output_transform/kernel"]


def returnn_key_shift(x: Tensor, p: Parameters) -> Tensor:
    """returnn/tf/layers/rec.py: SelfAttentionLayer, attention_left_only, with RelativePositionalEncodingLayer."""
    matrix = p["encoding_matrix"]
    width, clipping = matrix.shape[1], (matrix.shape[0] - 1) // 2
    heads = p["QKV"].shape[1] // (3 * width)
    query, key, value = heads_of(x @ p["QKV"], heads).split(width, dim=-1)
    query = query * width**-0.5
    steps = torch.arange(x.shape[1])
    key_shift = matrix[(steps[None] - steps[:, None]).clamp(-clipping, clipping) + clipping]
    energy = query @ key.transpose(-1, -2) + torch.einsum("bhid,ijd->bhij", query, key_shift)
    weights = torch.softmax(energy.masked_fill(future(len(steps), len(steps)), -torch.inf), dim=-1)
    return merged(weights @ value)
