"""The Conformer's attention as ESPnet and NeMo publish it, projections included.

    matrix_ac = (q + u) k^T                     matrix_bd = rel_shift((q + v) p^T),   p = linear_pos(pos_emb)
    scores = (matrix_ac + matrix_bd) / sqrt(d_k)
    linear_out(softmax(scores) v)

Sources: ESPnet, espnet/nets/pytorch_backend/transformer/attention.py, RelPositionMultiHeadedAttention, and
embedding.py, RelPositionalEncoding; NeMo, nemo/collections/asr/parts/submodules/multi_head_attention.py,
RelPositionMultiHeadAttention and RelPositionalEncoding, and nemo/collections/asr/modules/conformer_encoder.py,
_create_masks. The formulas are the same; what differs is said where it does.

pos_emb has a row for every distance i - j from L - 1 (the most distant past) down to -(L - 1), L keys, the sine and
cosine of a frequency side by side. The shift is theirs too: pad a column, reshape, drop a row, reshape. Arrays may be
complex and carry one extra leading axis (see gradient.py).
"""

from collections.abc import Mapping

import numpy as np

MASKED = -10000.0  # NeMo's score of a masked pair; ESPnet takes the smallest number of the dtype


def pos_emb(length: int, width: int) -> np.ndarray:
    """[2 * length - 1, width]: the sinusoids of length - 1, ..., 0, ..., -(length - 1)."""
    position = np.arange(length - 1, -length, -1.0)[:, None]
    div_term = np.exp(np.arange(0.0, width, 2.0) * -(np.log(10000.0) / width))
    table = np.zeros((2 * length - 1, width))
    table[:, 0::2] = np.sin(position * div_term)
    table[:, 1::2] = np.cos(position * div_term)
    return table


def rel_shift(x) -> np.ndarray:
    """[..., time1, rows] -> the same shape, row i moved left by time1 - 1 - i; its first columns are of meaning."""
    time1, rows = x.shape[-2:]
    padded = np.concatenate([np.zeros_like(x[..., :1]), x], axis=-1)
    return padded.reshape(*x.shape[:-2], rows + 1, time1)[..., 1:, :].reshape(x.shape)


def linear(x, parameters: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """x W^T + b; no b where the parameters have none."""
    weight = parameters[f"{name}.weight"]
    y = x @ np.swapaxes(weight, -1, -2)[..., None, :, :]
    bias = parameters.get(f"{name}.bias")
    return y if bias is None else y + bias[..., None, None, :]


def split_heads(x, num_heads: int) -> np.ndarray:
    """[..., B, time, E] -> [..., B, H, time, d_k]."""
    return np.swapaxes(x.reshape(*x.shape[:-1], num_heads, -1), -2, -3)


def attention(x, parameters: Mapping[str, np.ndarray], dropped=None, cached=None) -> np.ndarray:
    """Self-attention of x [B, time1, E], whose keys also are `cached` [B, time0, E], the inputs that came before.

    dropped: [B or 1, time1, time0 + time1] bool, True for the pairs that do not attend: NeMo's mask, the opposite of
    ESPnet's. A query that is left with no pair has weights 0, so its output is linear_out's bias.
    """
    u, v = parameters["pos_bias_u"], parameters["pos_bias_v"]
    num_heads, d_k = u.shape[-2:]
    keys = x if cached is None else np.concatenate([np.broadcast_to(cached, x.shape[:-2] + cached.shape[-2:]), x], -2)
    q = split_heads(linear(x, parameters, "linear_q"), num_heads)
    k = split_heads(linear(keys, parameters, "linear_k"), num_heads)
    values = split_heads(linear(keys, parameters, "linear_v"), num_heads)
    length = keys.shape[-2]
    p = split_heads(linear(pos_emb(length, x.shape[-1])[None], parameters, "linear_pos"), num_heads)
    matrix_ac = (q + u[..., None, :, None, :]) @ np.swapaxes(k, -1, -2)
    matrix_bd = rel_shift((q + v[..., None, :, None, :]) @ np.swapaxes(p, -1, -2))[..., :length]
    scores = (matrix_ac + matrix_bd) / np.sqrt(d_k)
    drop = np.zeros((1, 1, 1), dtype=bool) if dropped is None else dropped
    drop = drop[..., None, :, :]
    scores = np.where(drop, MASKED, scores)
    weights = np.exp(scores - np.real(scores).max(-1, keepdims=True))
    weights = np.where(drop, 0.0, weights / weights.sum(-1, keepdims=True))
    context = np.swapaxes(weights @ values, -2, -3)
    return linear(context.reshape(*context.shape[:-2], -1), parameters, "linear_out")


def dropped_pairs(kept, left: int, right: int, style: str = "regular") -> np.ndarray:
    """NeMo's att_mask [B, L, L], True where a pair does not attend, for att_context_size = [left, right].

    kept: [B, L] bool, False for padding, which neither attends nor is attended to. left, right: -1 for no limit. style:
    "regular", a window; or "chunked_limited", chunks of right + 1 that see themselves and left // (right + 1) chunks
    before.
    """
    index = np.arange(kept.shape[1])
    if style == "chunked_limited":
        chunk = index // (right + 1)
        behind = chunk[:, None] - chunk[None, :]
        attends = (behind >= 0) & (behind <= (left // (right + 1) if left >= 0 else len(index)))
    else:
        past = index[:, None] - index[None, :]
        attends = ((left < 0) | (past <= left)) & ((right < 0) | (-past <= right))
    return ~(attends & kept[:, :, None] & kept[:, None, :])
