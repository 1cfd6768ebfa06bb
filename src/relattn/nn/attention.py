"""RelativeMultiheadAttention: multi-head attention with any relative encoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from relattn.arguments import check_flag, check_probability, check_scale, check_size
from relattn.backends.select import check_backend
from relattn.encodings.base import RelativeEncoding, prepare
from relattn.errors import ShapeError, UnsupportedError
from relattn.functional import AttentionMask, Segments, Window, is_autocast, lowered, relative_attention
from relattn.nn.cache import KVCache
from relattn.score.checks import PADDED, check_boolean, check_float, check_layout, check_position, check_window, shape
from relattn.score.positions import Position, Positions, limits


class ProjectedAttention(nn.Module):
    """out_proj(concat_h relative_attention(q_proj(x)_h, k_proj(y)_h, v_proj(z)_h)): the forward pass of every module.

    A subclass brings the attributes below, as its own or as other names of what it has.
    """

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    encoding: RelativeEncoding | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dropout: float
    scale: float | None
    backend: str

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
        window: Window | None = None,
        query_position: Position | None = None,
        key_position: Position | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B Lq embed_dim"]:
        """Self-attention over `query`, or cross-attention to `key` (and `value`, which is `key` unless given).

        Masks and positions as in `relative_attention`; positions start at 0 unless given.

        cache: self-attention appends the new keys and values and sees all that it holds, their positions following
            from it; give query_position, [Lq] or [B, Lq], only where rows do not all go on at the next slot (padding
            on the right). key_mask then covers every slot so far, [B, next_position]. A full cache (`remember`) is
            attended to as `key` would be: nothing is appended, and query_position is as without a cache.

        Raises ShapeError, TypeError or ValueError for inputs that do not fit; the cache is then as it was.
        """
        if key is None and value is not None:
            raise ValueError("value: came without key; give key as well (value defaults to key, not the reverse)")
        q = self._heads("query", query, self.q_proj)
        attend = partial(
            relative_attention,
            attn_mask=attn_mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            scale=self.scale,
            enable_gqa=self.num_kv_heads != self.num_heads,
            segment_ids=segment_ids,
            backend=self.backend,
        )
        if cache is None:
            key = query if key is None else key
            k, v = self._keys_and_values(key, value)
            if key.shape[0] != query.shape[0]:
                raise ShapeError(
                    f"key: got batch {key.shape[0]} ({shape(key)}) beside query {shape(query)}; expected the same"
                )
            output = attend(
                q, k, v, encoding=self.encoding, query_position=0 if query_position is None else query_position,
                key_position=0 if key_position is None else key_position, window=window, key_mask=key_mask,
            )  # fmt: skip
        else:
            _check_cache(cache, key, key_position)
            check_window(window)
            check_flag("is_causal", is_causal)
            with cache.serving(self):
                if cache.is_full:
                    query_position = _position_of_queries(q, query_position, cache)
                else:
                    query_position = self._extend(cache, query, query_position)
                output = self._attend_to_cache(attend, q, query_position, is_causal, window, key_mask, cache)
        return self.out_proj(output.transpose(1, 2).flatten(2))

    def remember(
        self,
        key: Float[Tensor, "B Lk kdim"],
        value: Float[Tensor, "B Lk vdim"] | None = None,
        *,
        key_position: Position = 0,
    ) -> KVCache:
        """A full cache of a memory (an encoder's output): its keys and values, projected and prepared once.

        layer(query, cache=layer.remember(memory)) is layer(query, memory), and so for every query that follows; give
        each its query_position. value is `key` unless given; key_position as in `relative_attention`.
        """
        k, v = self._keys_and_values(key, value)
        check_position("key_position", key_position, k.shape[0], k.shape[2], k.device)
        if self.encoding is not None:
            k = prepare(self.encoding, k, key_position)
        cache = KVCache()
        with cache.serving(self):
            cache.fill(k, v, key_position)
        return cache

    def _keys_and_values(
        self, key: Float[Tensor, "B Lk kdim"], value: Float[Tensor, "B Lk vdim"] | None
    ) -> tuple[Float[Tensor, "B Hk Lk D"], Float[Tensor, "B Hk Lk Dv"]]:
        """The projections of key and value, which is `key` where None."""
        value = key if value is None else value
        k, v = self._heads("key", key, self.k_proj), self._heads("value", value, self.v_proj)
        if value.shape[:2] != key.shape[:2]:
            raise ShapeError(
                f"value: got shape {shape(value)} beside key {shape(key)}; expected the same batch and length"
            )
        return k, v

    def _heads(
        self, name: str, features: Float[Tensor, "B L width"], projection: nn.Linear
    ) -> Float[Tensor, "B H L D"]:
        """projection(features), head by head."""
        weight = projection.weight
        expected = f"a tensor [batch, length, {projection.in_features}]"
        if not isinstance(features, Tensor):
            raise TypeError(f"{name}: got {type(features).__name__}; expected {expected}")
        check_layout(name, features, PADDED)
        if features.dim() != 3 or features.shape[2] != projection.in_features:
            raise ShapeError(f"{name}: got shape {shape(features)}; expected {expected}")
        check_float(name, features)
        if features.device != weight.device:
            raise ValueError(
                f"{name}: lies on {features.device} and the module's weights on {weight.device}; move one of them with "
                ".to()"
            )
        meets = features.dtype == weight.dtype or not weight.is_floating_point()
        if is_autocast(features):  # which leaves float64 alone and makes the others equal
            meets = meets or torch.float64 not in (features.dtype, weight.dtype)
        if not meets:
            raise TypeError(
                f"{name}: got dtype {features.dtype} and the module's weights are {weight.dtype}; convert the input "
                f"with .to({weight.dtype}), or the module"
            )
        return projection(features).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _extend(
        self, cache: KVCache, query: Float[Tensor, "B n embed_dim"], query_position: Position | None
    ) -> Position:
        """Append the keys and values of the new tokens; returns their positions."""
        k, v = self._keys_and_values(query, None)
        position = cache.place("query_position", query_position, k.shape[0], k.shape[2], k.device)
        if self.encoding is not None:
            k = prepare(self.encoding, k, position)
        cache.append(k, v, position if isinstance(position, Tensor) else None)
        return position

    def _attend_to_cache(
        self,
        attend: Callable[..., Tensor],
        q: Float[Tensor, "B Hq n D"],
        query_position: Position,
        is_causal: bool,
        window: Window | None,
        key_mask: Bool[Tensor, "B next"] | None,
        cache: KVCache,
    ) -> Float[Tensor, "B Hq n D"]:
        """Attention to all that the cache holds."""
        k, v, key_position = cache.keys, cache.values, cache.key_position
        assert k is not None and v is not None
        window = _rolling_window(window, cache)
        terms = None
        if self.encoding is not None:
            lowest, highest = limits(is_causal, window)
            positions = Positions(
                query_position, key_position, q.shape[2], k.shape[2], q.device, lowest, highest, cache.kept_rows
            )
            terms = lowered(self.encoding, q, k, positions)
        return attend(
            q, k, v, encoding=terms, query_position=query_position, key_position=key_position,
            window=window, key_mask=None if key_mask is None else _held(key_mask, cache),
        )  # fmt: skip


class RelativeMultiheadAttention(ProjectedAttention):
    """out_proj(concat_h relative_attention(q_proj(x)_h, k_proj(y)_h, v_proj(z)_h)), with the encoding in every head.

    embed_dim: the width of the queries and of the output. num_heads: query heads. encoding: None, or a RelativeEncoding
        made for num_heads and head_dim. num_kv_heads: key and value heads, a divisor of num_heads (grouped queries);
        num_heads unless given. head_dim: embed_dim / num_heads unless given. dropout: of the attention weights, in
        training mode. bias: of the four projections. kdim, vdim: the widths of key and value inputs; embed_dim unless
        given. scale: 1 / sqrt(head_dim) unless given. backend: as in `relative_attention`.

    Raises ValueError for sizes that do not fit one another.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        encoding: RelativeEncoding | None = None,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        scale: float | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_size("embed_dim", embed_dim)
        check_size("num_heads", num_heads)
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_size("num_kv_heads", num_kv_heads)
        if num_heads % num_kv_heads:
            raise ValueError(
                f"num_kv_heads: got {num_kv_heads} with num_heads={num_heads}; expected a divisor of num_heads"
            )
        if head_dim is None:
            if embed_dim % num_heads:
                raise ValueError(
                    f"num_heads: got {num_heads} with embed_dim={embed_dim}; expected a divisor of embed_dim, or "
                    "give head_dim"
                )
            head_dim = embed_dim // num_heads
        check_size("head_dim", head_dim)
        for name, width in (("kdim", kdim), ("vdim", vdim)):
            if width is not None:
                check_size(name, width)
        check_probability("dropout", dropout)
        check_scale(scale)
        check_flag("bias", bias)
        if encoding is not None and not isinstance(encoding, RelativeEncoding):
            raise TypeError(f"encoding: got {type(encoding).__name__}; expected a RelativeEncoding or None")
        check_backend(backend)
        self.embed_dim, self.num_heads, self.num_kv_heads, self.head_dim = embed_dim, num_heads, num_kv_heads, head_dim
        self.dropout, self.scale, self.backend = dropout, scale, backend
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim if kdim is None else kdim, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim if vdim is None else vdim, num_kv_heads * head_dim, bias=bias)
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=bias)
        self.encoding = encoding

    @classmethod
    def from_torch(
        cls, attention: nn.MultiheadAttention, encoding: RelativeEncoding | None = None
    ) -> RelativeMultiheadAttention:
        """The module with torch.nn.MultiheadAttention's weights, copied, and an encoding beside them.

        Without an encoding the outputs are the same numbers, once two things are said our way. Inputs are [B, L, E],
        whatever `attention.batch_first` says. Boolean masks are True where a query attends: pass ~attn_mask, and
        key_mask=~key_padding_mask; a float mask stays.

        Widths, biases, dropout, dtype, device and training mode are those of `attention`; the encoding is taken as it
        is, put into that mode.

        Raises UnsupportedError for bias_k, bias_v or add_zero_attn, which add keys that stand at no position.
        """
        if not isinstance(attention, nn.MultiheadAttention):
            raise TypeError(f"attention: got {type(attention).__name__}; expected a torch.nn.MultiheadAttention")
        for name, came in (("add_bias_kv", attention.bias_k is not None), ("add_zero_attn", attention.add_zero_attn)):
            if came:
                raise UnsupportedError(
                    f"attention: was made with {name}=True, which adds a key that stands at no position; relattn has "
                    f"none such, take over a module made with {name}=False"
                )
        with torch.device("meta"):
            ours = cls(
                attention.embed_dim, attention.num_heads, encoding, dropout=attention.dropout,
                bias=attention.in_proj_bias is not None, kdim=attention.kdim, vdim=attention.vdim,
            )  # fmt: skip
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.chunk(3)
        else:
            weights = attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight
        biases = (None,) * 3 if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
        for projection, weight, bias in (
            *zip((ours.q_proj, ours.k_proj, ours.v_proj), weights, biases, strict=True),
            (ours.out_proj, attention.out_proj.weight, attention.out_proj.bias),
        ):
            theirs = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
            projection.load_state_dict({name: tensor.detach().clone() for name, tensor in theirs.items()}, assign=True)
        return ours.train(attention.training)

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        return (
            f"{self.embed_dim}, {self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}, "
            f"dropout={self.dropout}, backend={self.backend!r}"
        )


def _check_cache(cache: object, key: object, key_position: object) -> None:
    """A KVCache, which brings keys and their positions."""
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache: got {type(cache).__name__}; expected a KVCache or None; make one for each layer")
    if key is not None:
        raise ValueError(
            "cache: came with key; leave key and value out: a cache brings the keys, for cross-attention that of "
            "remember(key, value)"
        )
    if key_position is not None:
        raise ValueError("key_position: came with a cache, which knows where its keys stand; leave it out")


def _position_of_queries(q: Float[Tensor, "B Hq Lq D"], query_position: Position | None, cache: KVCache) -> Position:
    """Where queries stand that attend to a full cache: at 0 unless given."""
    assert cache.keys is not None
    if cache.keys.shape[0] != q.shape[0]:
        raise ShapeError(
            f"query: got batch {q.shape[0]} with a full cache of batch {cache.keys.shape[0]}; expected the same; "
            "reorder repeats and drops rows of the cache"
        )
    query_position = 0 if query_position is None else query_position
    check_position("query_position", query_position, q.shape[0], q.shape[2], q.device)
    return query_position.to(torch.int64) if isinstance(query_position, Tensor) else query_position


def _rolling_window(window: Window | None, cache: KVCache) -> Window | None:
    """The window that both the caller and a rolling cache set."""
    if cache.max_length is None:
        return window
    left = None if window is None else window[0]
    return cache.max_length - 1 if left is None else min(left, cache.max_length - 1), 0


def _held(key_mask: Tensor, cache: KVCache) -> Tensor:
    """The part of a mask over every slot that belongs to the keys the cache holds."""
    check_boolean(key_mask)
    if key_mask.dim() != 2 or key_mask.shape[1] != cache.next_position:
        raise ShapeError(
            f"key_mask: got shape {shape(key_mask)} with a cache; expected [batch, {cache.next_position}], a flag "
            "for every slot so far"
        )
    return key_mask[:, cache.first_position :]
