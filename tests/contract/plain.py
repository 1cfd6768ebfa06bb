"""The plain PyTorch formula: every pair's row written out, all of it in the dtype of the inputs, gradients by autograd.

It imports nothing of relattn's formulas. What the papers define as functions of integers (buckets, slopes, sinusoids,
angles) comes from the oracles in float64 and is then rounded: positions never pass through a half precision.

`magnitudes` gives the budget the size of what each answer adds up (see `tests.oracle.budget`): the same formula over
absolute values, every coefficient made positive.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests import seeds
from tests.contract.settings import Setting
from tests.contract.subject import Subject, parameters_of
from tests.oracle.alibi import slopes
from tests.oracle.budget import EPS
from tests.oracle.disentangled import delta
from tests.oracle.equation import Answer
from tests.oracle.pairs import Pairs, allowed_pairs, make_pairs
from tests.oracle.philox import dropout_factors
from tests.oracle.rope import angles, length_of
from tests.oracle.t5 import relative_position_bucket
from tests.oracle.transformer_xl import sinusoid


class Added(NamedTuple):
    """What an encoding adds per pair: S = scale * (content + scaled) + unscaled, values v_j + values."""

    content: Tensor | None = None
    scaled: Tensor | float = 0.0
    unscaled: Tensor | float = 0.0
    values: Tensor | None = None


class Formula(NamedTuple):
    """A call's pairs, those of an axis for what stands on it, and whether to compute it or to bound it.

    bound: None for the formula itself; for its magnitude the eps of the sums, against which a float64 angle's own
    rounding, 2^-52 of the angle, is weighed.
    """

    pairs: Pairs
    dtype: torch.dtype
    bound: float | None

    def constant(self, array: np.ndarray) -> Tensor:
        """A coefficient in the dtype of the call; its absolute value for a bound."""
        tensor = torch.from_numpy(np.asarray(array, dtype=np.float64)).to(self.dtype)
        return tensor if self.bound is None else tensor.abs()

    def wave(self, array: np.ndarray, angle: np.ndarray) -> Tensor:
        """A sine or cosine of an angle; for a bound its size, and how far the angle's rounding moves it."""
        slack = 0.0 if self.bound is None else np.abs(angle) * (EPS["float64"] / self.bound)
        return self.constant(array) if self.bound is None else self.constant(np.abs(array) + slack)

    def rows(self, table: Tensor, index: np.ndarray) -> Tensor:
        """table [H, R, *D] at index [n, Lq, Lk]: [n, H, Lq, Lk, *D]."""
        return table[:, torch.from_numpy(index)].transpose(0, 1)

    def kept(self, rows: Tensor, keep: np.ndarray) -> Tensor:
        """Rows [n, H, Lq, Lk, *D], zero where keep [n, Lq, Lk] is False."""
        keep_rows = torch.from_numpy(keep)[:, None]
        return rows * keep_rows.reshape(keep_rows.shape + (1,) * (rows.dim() - 4)).to(rows.dtype)

    def on(self, axis: str) -> "Formula":
        """The same on another axis."""
        return self._replace(pairs=self.pairs.axes[axis])

    def offsets_on(self, axes) -> tuple[list[np.ndarray], "Formula"]:
        """The offsets on each of them, 0 where one of a pair stands off the grid; and the formula on another."""
        offsets = [self.pairs.offset if axis == "sequence" else self.pairs.axes[axis].offset for axis in axes]
        there = self.on(next(axis for axis in axes if axis != "sequence"))
        return [np.where(there.pairs.visible, offset, 0) for offset in offsets], there

    def standing(self, added: Added) -> Added:
        """Nothing for pairs of which one stands off the grid on the axis; rewritten q . k stays."""
        keep = torch.from_numpy(self.pairs.visible.copy())[:, None]

        def kept(term, keep: Tensor):
            return term if not isinstance(term, Tensor) else term.masked_fill(~keep, 0.0)

        return Added(
            added.content, kept(added.scaled, keep), kept(added.unscaled, keep), kept(added.values, keep[..., None])
        )


def dot_rows(query: Tensor, rows: Tensor) -> Tensor:
    """q_i . a_ij."""
    return (query.unsqueeze(-2) * rows).sum(-1)


def shaw(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, max_distance) -> Added:
    left, right = (max_distance, max_distance) if isinstance(max_distance, int) else max_distance
    index = np.clip(f.pairs.offset, -left, right) + left
    values = f.rows(p["relative_values"], index) if "relative_values" in p else None
    return Added(scaled=dot_rows(query, f.rows(p["relative_keys"], index)), values=values)


def generalised(
    f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, causal=False, beyond="error"
) -> Added:
    table = p["relative_keys"]
    first = 1 - (table.shape[1] if causal else (table.shape[1] + 1) // 2)
    index = f.pairs.offset - first
    inside = (index >= 0) & (index < table.shape[1])
    rows = f.rows(table, index.clip(0, table.shape[1] - 1))
    return Added(scaled=dot_rows(query, rows if beyond == "clamp" else f.kept(rows, inside)))


def music_transformer(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor]) -> Added:
    return generalised(f, query, key, p, causal=True)


def transformer_xl(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, interleaved=False) -> Added:
    u, v = p["pos_bias_u"].unsqueeze(1), p["pos_bias_v"].unsqueeze(1)
    if "relative_keys" in p:
        table = p["relative_keys"]
        index = f.pairs.offset + (table.shape[1] - 1) // 2
        inside = (index >= 0) & (index < table.shape[1])
        rows = f.kept(f.rows(table, index.clip(0, table.shape[1] - 1)), inside)
    else:
        weight = p["linear_pos.weight"]
        distance = -f.pairs.offset
        waves = f.wave(sinusoid(distance, weight.shape[1], interleaved), distance[..., None])
        rows = (waves @ weight.T).unflatten(-1, (query.shape[1], -1)).movedim(-2, 1)
    return Added(scaled=dot_rows(query + v, rows) + u @ key.transpose(-1, -2))


def t5(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, max_distance, bidirectional) -> Added:
    bucket = relative_position_bucket(f.pairs.offset, p["bias"].shape[0], max_distance, bidirectional)
    return Added(unscaled=f.rows(p["bias"].T, bucket))


def disentangled(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, max_distance=None) -> Added:
    index = delta(-f.pairs.offset, p["relative_embeddings"].shape[0] // 2, max_distance)
    scaled = 0.0
    for side, content in (("key", query.unsqueeze(-2)), ("query", key.unsqueeze(-3))):
        if f"pos_{side}_proj.weight" in p:
            projected = p["relative_embeddings"] @ p[f"pos_{side}_proj.weight"].T + p[f"pos_{side}_proj.bias"]
            rows = f.rows(projected.unflatten(-1, (query.shape[1], -1)).transpose(0, 1), index)
            scaled = scaled + (content * rows).sum(-1)
    return Added(scaled=scaled)


def key_query(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor]) -> Added:
    table = p["relative_embeddings"]
    index = f.pairs.offset + (table.shape[1] - 1) // 2
    inside = (index >= 0) & (index < table.shape[1])
    rows = f.kept(f.rows(table, index.clip(0, table.shape[1] - 1)), inside)
    return Added(scaled=dot_rows(query, rows) + (key.unsqueeze(-3) * rows).sum(-1))


def alibi(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, given=None, signed=False) -> Added:
    offset = f.pairs.offset[:, None]
    distance = offset if signed else -np.abs(offset)
    if "slopes" in p:
        return Added(unscaled=p["slopes"][:, None, None] * f.constant(distance))
    slope = slopes(query.shape[1]) if given is None else np.array(given)
    return Added(unscaled=f.constant(slope[:, None, None] * distance))


def kerple(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, kind) -> Added:
    wide = torch.promote_types(f.dtype, torch.float32)
    distance = torch.from_numpy(np.abs(f.pairs.offset))[:, None].to(wide)
    r1, r2 = (p[name].to(wide)[:, None, None] for name in ("r1", "r2"))
    if kind == "log":
        size = (r1 * (1.0 + r2 * distance).log()).to(f.dtype)
    else:
        size = (r1 * (distance > 0) * torch.where(distance == 0, 1, distance) ** r2).to(f.dtype)
    return Added(unscaled=size if f.bound is not None else -size)


def sandwich(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, width) -> Added:
    angle = f.pairs.offset[..., None] / 10000.0 ** (2.0 * np.arange(width // 2) / width)
    waves = np.cos(angle)
    if f.bound is not None:
        waves = np.abs(waves) + np.abs(angle) * (EPS["float64"] / f.bound)
    ratios = 8.0 * np.arange(1, query.shape[1] + 1) / query.shape[1]
    return Added(unscaled=f.constant(waves.sum(-1)[:, None] / ratios[:, None, None]))


def function(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor]) -> Added:
    wide = torch.promote_types(f.dtype, torch.float32)
    offset = torch.from_numpy(np.asarray(f.pairs.offset, dtype=np.float64) / 4.0)[..., None].to(wide)
    weights = {name: parameter.to(wide) for name, parameter in p.items()}
    hidden = offset.abs() if f.bound is not None else offset
    hidden = hidden * weights["function.first.weight"][:, 0] + weights["function.first.bias"]
    hidden = hidden if f.bound is not None else hidden.tanh()
    last = hidden @ weights["function.last.weight"].T + weights["function.last.bias"]
    return Added(unscaled=last.movedim(-1, 1).to(f.dtype))


def rope(
    f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *,
    base, factor, interleaved, rotary_dim=None, rule=None,
) -> Added:  # fmt: skip
    width = query.shape[-1] if rotary_dim is None else rotary_dim

    def rotate(x: Tensor, position: np.ndarray, reached: int) -> Tensor:
        angle = angles(position, width, base, factor, rule, reached)[:, None]
        root = 1.0 if rule is None else rule.root
        cos, sin = root * f.wave(np.cos(angle), angle), root * f.wave(np.sin(angle), angle)
        turning, still = x[..., :width], x[..., width:]
        a, b = (turning[..., 0::2], turning[..., 1::2]) if interleaved else turning.chunk(2, -1)
        minus = sin if f.bound is not None else -sin
        # One layout is the other with its features permuted, on both sides of the dot product.
        return torch.cat([a * cos + b * minus, b * cos + a * sin, still], dim=-1)

    i, j = f.pairs.query_position, f.pairs.key_position
    return Added(content=rotate(query, i, length_of(i, j)) @ rotate(key, j, length_of(j)).transpose(-1, -2))


def grid_index(offsets: list[np.ndarray], sizes) -> np.ndarray:
    """The row of a joint table for each pair: mixed radix, the first axis slowest, from the farthest future on."""
    index = np.zeros((1, 1, 1), dtype=np.int64)
    for offset, size in zip(offsets, sizes, strict=True):
        index = index * (2 * size - 1) + np.clip(size - 1 - offset, 0, 2 * size - 2)
    return index


def grid_bias(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, sizes, axes, extra=0) -> Added:
    offsets, there = f.offsets_on(axes)
    index = grid_index(offsets, sizes)
    if not extra:
        return there.standing(Added(unscaled=f.rows(p["bias"].T, index)))
    of_query, of_key = (
        (np.arange(length) < prefix_tokens).astype(np.int64)
        for length, prefix_tokens in zip(index.shape[1:], there.pairs.prefix_tokens, strict=True)
    )
    which = of_query[:, None] + 2 * of_key  # 1 from a class token, 2 to one, 3 both
    last = p["bias"].shape[0] - 1
    index = np.where(which == 1, last - 2, np.where(which == 2, last - 1, np.where(which == 3, last, index)))
    return Added(unscaled=f.rows(p["bias"].T, index))


def grid_embedding(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, sizes, axes) -> Added:
    offsets, there = f.offsets_on(axes)
    return there.standing(Added(scaled=dot_rows(query, f.rows(p["relative_keys"], grid_index(offsets, sizes)))))


def log_grid(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, sizes, axes) -> Added:
    offsets, there = f.offsets_on(axes)
    y = np.stack(np.broadcast_arrays(*(-8.0 * o / max(s - 1, 1) for o, s in zip(offsets, sizes, strict=True))), -1)
    wide = torch.promote_types(f.dtype, torch.float32)
    x = torch.from_numpy(np.sign(y) * np.log2(1.0 + np.abs(y)) / 3.0).to(wide)
    x = x if f.bound is None else x.abs()
    first, bias, last = (p[f"function.mlp.{name}"].to(wide) for name in ("0.weight", "0.bias", "2.weight"))
    outcome = ((x @ first.T + bias).relu() @ last.T).movedim(-1, 1)
    # A sigmoid is at most 1, and its slope at most 1 / 4.
    unscaled = 16.0 * outcome.sigmoid() if f.bound is None else 16.0 + 4.0 * outcome
    return there.standing(Added(unscaled=unscaled.to(f.dtype)))


def decomposed(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, axes) -> Added:
    unscaled = 0.0
    for number, axis in enumerate(axes):
        (offset,), there = f.offsets_on((axis,))
        table = p[f"operands.{number}.encoding.table.relative_keys"]
        rows = f.rows(table, offset + (table.shape[1] - 1) // 2)
        unscaled = unscaled + there.standing(Added(unscaled=dot_rows(query, rows))).unscaled
    return Added(unscaled=unscaled)


def layoutlm_v3(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], *, max_distances) -> Added:
    names = ("operands.0.bias", "operands.1.encoding.bias", "operands.2.encoding.bias")
    each = zip((f, f.on("x"), f.on("y")), names, max_distances, strict=True)
    parts = [t5(on, query, key, {"bias": p[name]}, max_distance=far, bidirectional=True) for on, name, far in each]
    return Added(unscaled=sum(part.unscaled for part in parts))


def pitch_and_time(f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor]) -> Added:
    names = ("operands.0.relative_keys", "operands.1.encoding.relative_keys", "operands.2.encoding.relative_keys")
    each = zip((f, f.on("time"), f.on("pitch")), names, strict=True)
    return Added(scaled=sum(generalised(on, query, key, {"relative_keys": p[name]}).scaled for on, name in each))


PAPERS = {
    "shaw": shaw,
    "generalised": generalised,
    "music_transformer": music_transformer,
    "transformer_xl": transformer_xl,
    "t5": t5,
    "alibi": alibi,
    "rope": rope,
    "disentangled": disentangled,
    "key_query": key_query,
    "kerple": kerple,
    "sandwich": sandwich,
    "function": function,
    "grid_bias": grid_bias,
    "grid_embedding": grid_embedding,
    "log_grid": log_grid,
    "decomposed": decomposed,
    "layoutlm_v3": layoutlm_v3,
    "pitch_and_time": pitch_and_time,
}


def of_part(
    f: Formula, query: Tensor, key: Tensor, p: Mapping[str, Tensor], oracle: str, *, on: str | None = None, **settings
) -> Added:
    """What a part adds, on its axis."""
    if on is None:
        return PAPERS[oracle](f, query, key, p, **settings)
    own = {name.removeprefix("encoding."): array for name, array in p.items()}
    return f.on(on).standing(PAPERS[oracle](f.on(on), query, key, own, **settings))


def hand_made(f: Formula, subject: Subject, key: Tensor, arrays: Mapping[str, Tensor]) -> Added:
    """ScoreTerms, by the equation; without a relative query of their own, r is the query as the caller gave it."""

    def rows(name: str) -> Tensor | None:
        if name not in subject.hand_tables:
            return None
        table, values = subject.hand_tables[name], arrays[name]
        index = f.pairs.offset - table.first
        inside = (index >= 0) & (index < values.shape[1])
        found = f.rows(values, index.clip(0, values.shape[1] - 1))
        return found if table.beyond == "clamp" else f.kept(found, inside)

    relative_query = arrays.get("terms.relative_query", arrays["query"])
    relative_keys, relative_queries, bias = rows("relative_keys"), rows("relative_queries"), rows("bias")
    scaled = 0.0 if relative_keys is None else dot_rows(relative_query, relative_keys)
    scaled = scaled if relative_queries is None else scaled + (relative_queries * key.unsqueeze(-3)).sum(-1)
    return Added(scaled=scaled, unscaled=0.0 if bias is None else bias, values=rows("relative_values"))


class Scored(NamedTuple):
    """S' [B, H, Lq, Lk] without hidden pairs, and the values per pair [B or 1, H, Lq or 1, Lk, Dv]."""

    scores: Tensor
    values: Tensor


def score(subject: Subject, arrays: Mapping[str, Tensor], dtype: torch.dtype, bound: float | None) -> Scored:
    """The formula up to the softmax, or its magnitude."""
    setting = subject.setting
    pairs = make_pairs(
        setting.query_length,
        setting.key_length,
        setting.query_position,
        setting.key_position,
        setting.is_causal,
        setting.window,
        setting.oracle_axes(),
    )
    f = Formula(pairs, dtype, bound)
    arrays = {name: array.to(dtype) for name, array in arrays.items()}
    groups = setting.num_heads // setting.num_kv_heads
    query = arrays.get("terms.query", arrays["query"])
    key = arrays.get("terms.key", arrays["key"]).repeat_interleave(groups, dim=1)
    value = arrays["value"].repeat_interleave(groups, dim=1)
    if subject.hand_tables:
        each = [hand_made(f, subject, key, arrays)]
    else:
        each = [
            of_part(f, query, key, parameters_of(i, arrays), part.oracle, **part.settings)
            for i, part in enumerate(subject.parts)
        ]
    contents = [one.content for one in each if one.content is not None]
    products = contents[0] if contents else query @ key.transpose(-1, -2)
    for one in each:
        products = products + one.scaled
    scale = 1.0 / math.sqrt(setting.head_dim) if setting.scale is None else setting.scale
    scores = products * scale
    values = value.unsqueeze(-3)
    for one in each:
        scores = scores + one.unscaled
        values = values if one.values is None else values + one.values
    if setting.softcap is not None and bound is None:  # which lets no error grow: its slope is 1 at most
        scores = setting.softcap * (scores / setting.softcap).tanh()
    if "key_bias" in arrays:
        scores = scores + arrays["key_bias"].unsqueeze(-2)
    if "attn_mask" in arrays:
        mask = arrays["attn_mask"]
        scores = scores + torch.where(torch.isinf(mask), 0.0, mask)
    return Scored(scores, values)


def allowed_of(subject: Subject) -> np.ndarray:
    """Which pairs attend, broadcastable to [B, H, Lq, Lk]."""
    s = subject.setting
    pairs = make_pairs(s.query_length, s.key_length, s.query_position, s.key_position, s.is_causal, s.window)
    return allowed_pairs(pairs, s.key_mask, s.segment_ids, s.attn_mask)


def dropped_of(setting: Setting) -> Tensor | float:
    """What dropout multiplies the weights with: the factors of the seed that a call draws from torch's generator."""
    if not setting.dropout_p:
        return 1.0
    seeds.start_torch(setting.seed)
    seed = int(torch.randint(2**63 - 1, ()))
    shape = setting.batch, setting.num_heads, setting.query_length, setting.key_length
    return torch.from_numpy(dropout_factors(seed, setting.dropout_p, *shape))


class Plain(NamedTuple):
    """What the formula gives."""

    output: Tensor
    lse: Tensor
    weights: Tensor


def plain_attention(subject: Subject, arrays: Mapping[str, Tensor], dtype: torch.dtype) -> Plain:
    """Matmul, gather, softmax, matmul."""
    setting = subject.setting
    scores, values = score(subject, arrays, dtype, None)
    allowed = torch.from_numpy(allowed_of(subject)).expand(scores.shape)
    alive = allowed.any(-1, keepdim=True)
    masked = scores.masked_fill(~allowed & alive, -torch.inf)
    if "sinks" in arrays:
        logits = torch.cat([masked, sinks_of(arrays, scores).unsqueeze(-1)], dim=-1)
        weights = logits.softmax(-1)[..., :-1].masked_fill(~alive, 0.0)
    else:
        weights = masked.softmax(-1).masked_fill(~alive, 0.0)
    dropped = (weights * dropped_of(setting)).to(dtype)
    output = (dropped.unsqueeze(-1) * values).sum(-2)
    return Plain(output, masked.logsumexp(-1).masked_fill(~alive[..., 0], -torch.inf), weights)


def sinks_of(arrays: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """The sinks of every row [B, H, Lq], in the dtype of the scores `like` [B, H, Lq, Lk]."""
    sinks = arrays["sinks"].to(like.dtype)
    return (sinks.unsqueeze(-1) if sinks.dim() == 1 else sinks).expand(like.shape[:-1])


def magnitudes(
    subject: Subject, answer: Answer, accumulation_eps: float, cotangents: tuple[np.ndarray, np.ndarray] | None
) -> dict[str, float]:
    """For each answer and gradient, the max norm of what it sums, over absolute values: the budget's `magnitude`.

    To first order. A score's own roundings are relative to Sabs, its sum over absolute values, and move the weights w
    by a factor of up to 1 + 2 max_j Sabs =: m (their own score's error and the row's mean error). Then

        output   m * sum_j w_j |v_j + RV|              lse   max_j Sabs + 1             weights   m * w

    and the gradient by a score, dS_ij = w_ij (dO_i . (v_j + RV) - sum_j' w_ij' dO_i . (v_j' + RV) + dlse_i), is bounded
    by A, the same with every term positive, times m. Gradients by anything else are sums of dS over the coefficients of
    a polynomial: those of A by autograd through the formula with all signs positive, and those of the output by its
    values.

    With a sink, w are the weights beside it, those of lse are w / (1 - p), p the sink's own, and m grows by |sink|. The
    gradient by it, -p sum_j w_j dO_i . (v_j + RV), is bounded likewise. p = sigmoid(sink - lse) may be far below eps:
    as 1 less the sum of w it would be a rounding.
    """
    sizes = {name: array.detach().double().abs() for name, array in subject.arrays.items()}
    leaves = {name: torch.where(torch.isinf(size), 0.0, size).requires_grad_() for name, size in sizes.items()}
    scores, values = score(subject, leaves, torch.float64, accumulation_eps)
    allowed = torch.from_numpy(allowed_of(subject)).expand(scores.shape)
    weights = torch.from_numpy(np.ascontiguousarray(answer.weights))
    largest = scores.detach().abs().masked_fill(~allowed, 0.0).amax(-1)
    moved, dropped, of_keys, taken = 1.0 + 2.0 * largest, dropped_of(subject.setting), weights, None
    if "sinks" in leaves:
        taken = torch.sigmoid(sinks_of(subject.arrays, scores).detach() - torch.from_numpy(answer.lse))
        of_keys = weights / (1.0 - taken).masked_fill(taken == 1.0, 1.0).unsqueeze(-1)
        moved = moved + sinks_of(leaves, scores).detach()
    output = ((weights * dropped).unsqueeze(-1) * values).sum(-2) * moved.unsqueeze(-1)
    sizes = {"output": output, "lse": largest + 1.0, "weights": weights * moved.unsqueeze(-1)}
    if cotangents is not None:
        by_output, by_lse = (torch.from_numpy(cotangent).abs() for cotangent in cotangents)
        products = (by_output.unsqueeze(-2) * values.detach()).sum(-1) * dropped
        means = (weights * products).sum(-1, keepdim=True)
        bound = (weights * (products + means) + of_keys * by_lse.unsqueeze(-1)) * moved.unsqueeze(-1)
        total = (bound * scores).sum() + (by_output * output).sum()
        if taken is not None:
            total = total + (taken * means.squeeze(-1) * moved * sinks_of(leaves, scores)).sum()
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        sizes |= {f"gradient of {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return {name: float(size.detach().abs().max()) if size.numel() else 0.0 for name, size in sizes.items()}
