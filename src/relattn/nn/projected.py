"""ProjectedAttention: projections, attention with or without a cache, and the output's projection."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from relattn import steps
from relattn.call import Options
from relattn.checks.autocast import is_autocast
from relattn.checks.dtensors import DTENSORS, FSDP, check_split_alike, outliving
from relattn.checks.positions import check_window, places_beside, side_of
from relattn.checks.tensors import FLOAT_DTYPES, PADDED, check_float, check_layout, shape
from relattn.checks.values import check_flag, kind_of
from relattn.encodings.base import RelativeEncoding, prepare
from relattn.equation.mask import AttentionMask, Segments
from relattn.equation.problem import Part
from relattn.equation.visible_blocks import VisibleBlocks
from relattn.errors import ShapeError, UnsupportedError
from relattn.interception import refuse_trace
from relattn.nn.cache import KVCache
from relattn.nn.slots import held_attn_mask, held_key_bias, held_key_mask, held_segments
from relattn.plan import attend
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.places import Places
from relattn.positions.position import Position, PositionsLike
from relattn.positions.positions import SEQUENCE, Positions, Window, limits


class ProjectedAttention(nn.Module):
    """out_proj(concat_h relative_attention(q_proj(x)_h, k_proj(y)_h, v_proj(z)_h)): the forward pass of every module.

    A subclass defines the attributes below, as attributes or as other names of existing ones.

    A style of `relattn.distributed` sets one of these on a module; by default they are None. attend_parts: attention
    with the arguments of `relative_attention`, where several processes hold parts of the sequences. own_heads: the
    heads that the process computes, and the number of all heads, so that dropout counts them as one process does.
    """

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    encoding: RelativeEncoding | None
    embed_dim: int
    kdim: int
    vdim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dropout: float
    scale: float | None
    backend: str
    attend_parts: Callable[..., Any] | None = None
    own_heads: Part | None = None

    def __init_subclass__(cls) -> None:
        """`forward` and `remember`, where they are inherited from here, under the name of the subclass: Python says it
        of an unknown keyword.
        """
        for name in ("forward", "remember"):
            method: FunctionType = vars(ProjectedAttention)[name]
            if getattr(cls, name) is method:
                own = FunctionType(method.__code__, method.__globals__, name, method.__defaults__)
                own.__kwdefaults__ = method.__kwdefaults__
                setattr(cls, name, update_wrapper(own, method))
                own.__qualname__ = f"{cls.__name__}.{name}"

    def forward(
        self,
        query: Float[Tensor, "B Lq embed_dim"],
        key: Float[Tensor, "B Lk kdim"] | None = None,
        value: Float[Tensor, "B Lk vdim"] | None = None,
        *,
        attn_mask: AttentionMask | None = None,
        is_causal: bool = False,
        key_mask: Bool[Tensor, "B Lk"] | None = None,
        segment_ids: Segments | None = None,
        visible_blocks: VisibleBlocks | None = None,
        window: Window | None = None,
        query_position: PositionsLike | None = None,
        key_position: PositionsLike | None = None,
        key_bias: Float[Tensor, "#B #H Lk"] | None = None,
        softcap: float | None = None,
        sinks: Float[Tensor, "H"] | Float[Tensor, "B H Lq"] | None = None,
        cache: KVCache | None = None,
        need_weights: bool = False,
    ) -> Float[Tensor, "B Lq embed_dim"]:
        """Self-attention over `query`, or cross-attention to `key` (and `value`, by default `key`).

        Masks, positions, key_bias, softcap and sinks are as in `relative_attention`; positions start at 0 by default.

        visible_blocks: as there; None with a cache, and where the sequence is split over processes.

        cache: self-attention appends the new keys and values and sees all that the cache holds. Positions follow from
            the cache; give query_position, [Lq] or [B, Lq], only if some rows do not go on at the next slot (padding on
            the right). Positions on other axes go with every chunk, by name. Masks cover every slot so far, also those
            that the cache has dropped: key_mask [B, next_position], attn_mask along its last axis, and segment_ids, one
            tensor [B, next_position] or a pair with it as the second. key_bias covers every slot, too, along its last
            axis. A cache with a max_length rolls: attention is then always causal, within that window. To a full cache
            (`remember`) attention works as to `key`: nothing is appended, and query_position is as without a cache.

        need_weights: as in torch.nn.MultiheadAttention; only False is allowed.

        Raises ShapeError, TypeError, ValueError: for inputs that do not fit; UnsupportedError: for need_weights=True.
        The cache is then as it was.
        """
        if need_weights is not False:
            _refuse_weights(need_weights)
        if key is None and value is not None:
            raise ValueError("value: came without key; give key as well (value defaults to key, not the reverse)")
        if visible_blocks is not None and (cache is not None or self.attend_parts is not None):
            came = "with a cache" if cache is not None else "to a layer whose sequences are split over processes"
            raise ValueError(f"visible_blocks: came {came}, whose masks are others in each call; leave it out there")
        if DTENSORS in sys.modules:
            check_split_alike(self, self.q_proj)
        q = self._heads("query", query, self.q_proj, self.embed_dim)
        dropout_p, enable_gqa = self.dropout if self.training else 0.0, self.num_kv_heads != self.num_heads
        if cache is not None:
            _check_cache(cache, key, key_position)
            if self.attend_parts is not None:
                raise UnsupportedError(
                    "cache: came to a layer whose sequences are split over processes (ContextParallel), each of which "
                    "would hold keys of its own; decode with a layer that is not"
                )
            if not isinstance(is_causal, bool):
                check_flag("is_causal", is_causal)
            window = None if window is None else check_window(window)
            if cache.max_length is not None:
                window = _rolling_window(window, is_causal, cache)
            with cache.serving(self, self.encoding):
                keys, values, places = self._placed(cache, query, q, query_position, is_causal, window)
                options = Options(
                    attn_mask=None if attn_mask is None else held_attn_mask(attn_mask, cache),
                    key_mask=None if key_mask is None else held_key_mask(key_mask, cache),
                    segment_ids=None if segment_ids is None else held_segments(segment_ids, q.shape[2], cache),
                    key_bias=None if key_bias is None else held_key_bias(key_bias, cache),
                    softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=self.scale, backend=self.backend,
                )  # fmt: skip
                output = steps.attend(q, keys, values, enable_gqa, self.encoding, places, options, self.own_heads)
        else:
            key = query if key is None else key
            k, v = self._keys_and_values(key, value)
            if key.shape[0] != query.shape[0]:
                raise ShapeError(
                    f"key: got batch {key.shape[0]} ({shape(key)}) beside query {shape(query)}; expected the same"
                )
            options = Options(
                attn_mask=attn_mask, key_mask=key_mask, segment_ids=segment_ids, visible_blocks=visible_blocks,
                window=window, key_bias=key_bias, softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=self.scale,
                backend=self.backend,
            )  # fmt: skip
            query_position = 0 if query_position is None else query_position
            key_position = 0 if key_position is None else key_position
            if self.attend_parts is None:
                output = attend(
                    q, k, v, is_causal, enable_gqa, self.encoding, query_position, key_position, options,
                    self.own_heads,
                )  # fmt: skip
            else:
                others = {name: value for name, value in vars(options).items() if name != "visible_blocks"}
                output = self.attend_parts(
                    q, k, v, is_causal=is_causal, enable_gqa=enable_gqa, encoding=self.encoding,
                    query_position=query_position, key_position=key_position, **others,
                )  # fmt: skip
        output = self.out_proj(output.transpose(1, 2).flatten(2))
        return outliving(self, output) if FSDP in sys.modules else output

    def _slow_forward(self, *_: object, **__: object) -> None:
        """What torch calls in place of `forward` under torch.jit.trace, and in the exporter to ONNX that traces.

        Raises UnsupportedError: always.
        """
        refuse_trace()

    def remember(
        self,
        key: Float[Tensor, "B Lk kdim"],
        value: Float[Tensor, "B Lk vdim"] | None = None,
        *,
        key_position: PositionsLike = 0,
    ) -> KVCache:
        """A full cache of a memory (an encoder's output): its keys and values, projected and prepared once.

        layer(query, cache=layer.remember(memory)) equals layer(query, memory). This also holds for every later query;
        give each its query_position. value is `key` by default; key_position is as in `relative_attention`.

        Raises ShapeError, TypeError, ValueError: for inputs that do not fit.
        """
        k, v = self._keys_and_values(key, value)
        place, beside = side_of("key_position", key_position, k.shape[:1], k.shape[2], k.device)
        cache = KVCache()
        with cache.serving(self, self.encoding):
            if self.encoding is not None:
                k = prepare(self.encoding, k, {SEQUENCE: place, **beside})
            cache.keep(k, v, place, beside)
        return cache

    def _keys_and_values(
        self, key: Float[Tensor, "B Lk kdim"], value: Float[Tensor, "B Lk vdim"] | None
    ) -> tuple[Float[Tensor, "B Hk Lk D"], Float[Tensor, "B Hk Lk Dv"]]:
        """The projections of key and value, which is `key` where None."""
        value = key if value is None else value
        k = self._heads("key", key, self.k_proj, self.kdim)
        v = self._heads("value", value, self.v_proj, self.vdim)
        if value.shape[:2] != key.shape[:2]:
            raise ShapeError(
                f"value: got shape {shape(value)} beside key {shape(key)}; expected the same batch and length"
            )
        return k, v

    def _heads(
        self, name: str, features: Float[Tensor, "B L width"], projection: nn.Linear, width: int
    ) -> Float[Tensor, "B H L D"]:
        """projection(features), head by head."""
        expected = f"a tensor [batch, length, {width}]"
        if not isinstance(features, Tensor):
            raise TypeError(f"{name}: got {kind_of(features)}; expected {expected}")
        if features.is_nested or features.layout != torch.strided:
            check_layout(name, features, PADDED)
        if features.dim() != 3 or features.shape[2] != width:
            raise ShapeError(f"{name}: got shape {shape(features)}; expected {expected}")
        if features.dtype not in FLOAT_DTYPES:
            check_float(name, features)
        try:
            projected = projection(features)
        except Exception:
            _refuse_other_kind(name, features, projection)
            raise
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _placed(
        self,
        cache: KVCache,
        query: Float[Tensor, "B n embed_dim"],
        q: Float[Tensor, "B Hq n D"],
        query_position: PositionsLike | None,
        is_causal: bool,
        window: Window | None,
    ) -> tuple[Float[Tensor, "B Hk L D"], Float[Tensor, "B Hk L Dv"], Places]:
        """The cache's keys and values, after those of the new tokens are appended to it, and where they and queries
        stand.
        """
        if cache.is_full:
            place, beside = _positions_of_queries(q, query_position, cache)
            keys, values = cache.keys, cache.values
            assert keys is not None and values is not None
        else:
            k, v = self._keys_and_values(query, None)
            place, beside = cache.place("query_position", query_position, k.shape[0], k.shape[2], k.device)
            if self.encoding is not None:
                k = prepare(self.encoding, k, {SEQUENCE: place, **beside})
            keys, values = cache.hold(k, v, place, beside)
        position, others, lengths = cache.position, cache.beside, (q.shape[2], keys.shape[2])
        sequence = Positions(place, position, *lengths, q.device, *limits(is_causal, window), cache.kept_rows)
        places = places_beside(sequence, beside, others) if beside or others else Places(sequence)
        return keys, values, places


def _refuse_other_kind(name: str, features: Tensor, projection: nn.Module) -> None:
    """Raises ValueError, TypeError: for features on another device than a projection's weights, or of another dtype.

    It is asked once the projection has failed. Before its call the weights may lie elsewhere, packed or offloaded.
    """
    weight = next(projection.parameters(), None)
    if weight is None:
        return
    if features.device != weight.device:
        raise ValueError(
            f"{name}: got device {features.device}; expected {weight.device}, that of the module's weights; move one "
            "of them with .to()"
        )
    meets = features.dtype == weight.dtype or not weight.is_floating_point()
    if is_autocast(features):  # this leaves float64 alone and makes the others equal
        meets = meets or torch.float64 not in (features.dtype, weight.dtype)
    if not meets:
        raise TypeError(
            f"{name}: got dtype {features.dtype}; expected {weight.dtype}, that of the module's weights; convert the "
            f"input with .to({weight.dtype}), or the module"
        )


def _refuse_weights(need_weights: object) -> NoReturn:
    """torch.nn.MultiheadAttention's need_weights; this layer only has False."""
    check_flag("need_weights", need_weights)
    raise UnsupportedError(
        "need_weights: got True; expected False, for the layer returns its output alone; relattn.attention_weights "
        "gives the weights for the same query, key and encoding, head by head"
    )


def _check_cache(cache: object, key: object, key_position: object) -> None:
    """A KVCache, which gives keys and their positions."""
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache: got {kind_of(cache)}; expected a KVCache or None; make one for each layer")
    if key is not None:
        raise ValueError(
            "cache: came with key; leave key and value out: a cache brings the keys, for cross-attention that of "
            "remember(key, value)"
        )
    if key_position is not None:
        raise ValueError("key_position: came with a cache, which holds the positions of its keys; leave it out")


def _positions_of_queries(
    q: Float[Tensor, "B Hq Lq D"], query_position: PositionsLike | None, cache: KVCache
) -> tuple[ContiguousPositions | ExplicitPositions, dict[str, Position]]:
    """The positions of queries that attend to a full cache: on the sequence, from 0 by default, and on other axes."""
    assert cache.keys is not None
    if cache.keys.shape[0] != q.shape[0]:
        raise ShapeError(
            f"query: got batch {q.shape[0]} with a full cache of batch {cache.keys.shape[0]}; expected the same; "
            "reorder repeats and drops rows of the cache"
        )
    given = 0 if query_position is None else query_position
    return side_of("query_position", given, q.shape[:1], q.shape[2], q.device)


def _rolling_window(window: Window | None, is_causal: bool, cache: KVCache) -> Window | None:
    """The window that both the caller and a rolling cache set."""
    assert cache.max_length is not None
    left, right = (None, None) if window is None else window
    if right and not is_causal:
        raise ValueError(
            f"window: got {window} with a rolling cache (max_length={cache.max_length}), which sees nothing ahead; "
            "expected 0 on its right side; for a context on both sides take a KVCache() and its forget()"
        )
    return cache.max_length - 1 if left is None else min(left, cache.max_length - 1), 0
