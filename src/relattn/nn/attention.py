"""RelativeMultiheadAttention: multi-head attention with any relative encoding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relattn.backends.select import check_backend
from relattn.checks.values import check_flag, check_probability, check_scale, check_size, kind_of
from relattn.encodings.base import RelativeEncoding
from relattn.equation.terms import ScoreTerms
from relattn.errors import UnsupportedError
from relattn.nn.projected import ProjectedAttention


class RelativeMultiheadAttention(ProjectedAttention):
    """out_proj(concat_h relative_attention(q_proj(x)_h, k_proj(y)_h, v_proj(z)_h)), with the encoding in every head."""

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
        """Four projections around the encoding.

        embed_dim: the width of the queries and of the output.
        num_heads: query heads.
        encoding: None, or a RelativeEncoding made for num_heads and head_dim.
        num_kv_heads: key and value heads, a divisor of num_heads (grouped queries); num_heads by default.
        head_dim: embed_dim / num_heads by default.
        dropout: applied to the attention weights in training mode.
        bias: whether the four projections have biases.
        kdim: the width of key inputs; embed_dim by default.
        vdim: the width of value inputs; embed_dim by default.
        scale: 1 / sqrt(head_dim) by default.
        backend: as in `relative_attention`.

        Raises ValueError: for sizes that do not fit one another.
        """
        super().__init__()
        embed_dim, num_heads = check_size("embed_dim", embed_dim), check_size("num_heads", num_heads)
        num_kv_heads = check_size("num_kv_heads", num_heads if num_kv_heads is None else num_kv_heads)
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
        head_dim = check_size("head_dim", head_dim)
        key_width = embed_dim if kdim is None else check_size("kdim", kdim)
        value_width = embed_dim if vdim is None else check_size("vdim", vdim)
        dropout, scale = check_probability("dropout", dropout), None if scale is None else check_scale(scale)
        check_flag("bias", bias)
        if encoding is not None and not isinstance(encoding, RelativeEncoding):
            way_out = ""
            if isinstance(encoding, ScoreTerms):
                way_out = (
                    "; ScoreTerms fit one call: give them to relative_attention, or return them from `terms` of a "
                    "RelativeEncoding of your own"
                )
            raise TypeError(f"encoding: got {kind_of(encoding)}; expected a RelativeEncoding or None{way_out}")
        check_backend(backend)
        self.embed_dim, self.kdim, self.vdim = embed_dim, key_width, value_width
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.dropout, self.scale, self.backend = dropout, scale, backend
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(key_width, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(value_width, num_kv_heads * head_dim, bias=bias)
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=bias)
        self.encoding = encoding

    @classmethod
    def from_torch(
        cls, attention: nn.MultiheadAttention, encoding: RelativeEncoding | None = None
    ) -> RelativeMultiheadAttention:
        """The module with copies of torch.nn.MultiheadAttention's weights, and with an encoding.

        Without an encoding the outputs are the same numbers. Two conventions differ. Inputs are always [B, L, E], also
        where `attention.batch_first` is False. Boolean masks are True where a query attends: pass ~attn_mask, and
        key_mask=~key_padding_mask. A float mask stays.

        Widths, biases, dropout, dtype, device and training mode are those of `attention`, and parameters that are
        frozen there (requires_grad False) are frozen here. The encoding is used as it is; only its mode is set.

        Raises UnsupportedError: for bias_k, bias_v or add_zero_attn, which add keys without a position.
        """
        if not isinstance(attention, nn.MultiheadAttention):
            raise TypeError(f"attention: got {kind_of(attention)}; expected a torch.nn.MultiheadAttention")
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
            weights = _thirds(attention.in_proj_weight)
        else:
            weights = attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight
        biases = (None,) * 3 if attention.in_proj_bias is None else _thirds(attention.in_proj_bias)
        for projection, weight, bias in (
            *zip((ours.q_proj, ours.k_proj, ours.v_proj), weights, biases, strict=True),
            (ours.out_proj, attention.out_proj.weight, attention.out_proj.bias),
        ):
            theirs = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
            projection.load_state_dict({name: tensor.detach().clone() for name, tensor in theirs.items()}, assign=True)
            for name, tensor in theirs.items():
                projection.get_parameter(name).requires_grad_(tensor.requires_grad)
        return ours.train(attention.training)

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        return (
            f"{self.embed_dim}, {self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}, "
            f"dropout={self.dropout}, backend={self.backend!r}"
        )


def _thirds(parameter: Tensor) -> list[Tensor]:
    """The weights of the queries, keys and values, frozen where the parameter is frozen."""
    return [part.requires_grad_(parameter.requires_grad) for part in parameter.detach().chunk(3)]
