"""RelPositionMultiHeadedAttention: the Conformer's attention, with the weights' names from ESPnet and NeMo."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relattn.backends.select import check_backend
from relattn.checks.values import check_flag, check_probability, check_size
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.transformer_xl import projected_terms
from relattn.equation.terms import ScoreTerms
from relattn.nn.projected import ProjectedAttention
from relattn.positions.positions import Positions


class RelPositionMultiHeadedAttention(ProjectedAttention):
    """S_ij = ((q_i + u) . k_j + (q_i + v) . W R[i - j]) / sqrt(head_dim);  linear_out(softmax(S) v).

    Its state_dict has the keys and shapes of ESPnet's RelPositionMultiHeadedAttention and NeMo's
    RelPositionMultiHeadAttention, so that load_state_dict takes their weights:

        linear_q, linear_k, linear_v, linear_out   Linear(embed_dim, embed_dim, bias=bias)
        linear_pos W                               Linear(embed_dim, embed_dim, bias=False)
        pos_bias_u u, pos_bias_v v                 [num_heads, embed_dim / num_heads]

    They lie at the top level, as there. `encoding` is TransformerXLEmbedding's equation with interleaved=True; it has
    no parameters and reads these.

    It is called like RelativeMultiheadAttention: [B, L, embed_dim], masks True where a query attends, window=(left,
    right) for NeMo's att_context_size=[left, right] of style "regular". There is no pos_emb: R is computed here, for
    any length and start, with angles in float64. Two steps stay with the encoder around it: scaling the input by
    sqrt(embed_dim) (xscaling), and dropout of R in training.

    Do not load weights of ESPnet's LegacyRelPositionMultiHeadedAttention (rel_pos_type="legacy", and weights older than
    that setting). It has the same names and shapes but another formula; only the configuration tells. Do not load
    weights of zero_triu=True either, unless attention is causal, where it changes nothing.

    Source: Dai et al. 2019 (Transformer-XL), section 3.3; Gulati et al. 2020 (Conformer), section 2.1; ESPnet,
    espnet/nets/pytorch_backend/transformer/attention.py; NeMo,
    nemo/collections/asr/parts/submodules/multi_head_attention.py.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, dropout: float = 0.0, bias: bool = True, backend: str = "auto"
    ) -> None:
        """Five projections and two vectors for each head.

        embed_dim: n_feat in ESPnet and NeMo, even.
        num_heads: n_head there, a divisor of embed_dim.
        dropout: applied to the attention weights in training mode.
        bias: use_bias in NeMo, always True in ESPnet.
        backend: as in `relative_attention`.

        Raises ValueError: for sizes that do not fit one another.
        """
        embed_dim, num_heads = check_size("embed_dim", embed_dim), check_size("num_heads", num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"num_heads: got {num_heads} with embed_dim={embed_dim}; expected a divisor of embed_dim")
        dropout = check_probability("dropout", dropout)
        check_flag("bias", bias)
        check_backend(backend)
        if embed_dim % 2:
            raise ValueError(
                f"embed_dim: got {embed_dim}; expected an even width, a sine and a cosine for each frequency"
            )
        super().__init__()
        self.embed_dim = self.kdim = self.vdim = embed_dim
        self.num_heads = self.num_kv_heads = num_heads
        self.head_dim, self.dropout, self.scale, self.backend = embed_dim // num_heads, dropout, None, backend
        self.linear_q = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.linear_k = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.linear_v = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.linear_out = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.linear_pos = nn.Linear(embed_dim, embed_dim, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(num_heads, self.head_dim))
        self.pos_bias_v = nn.Parameter(torch.zeros(num_heads, self.head_dim))
        object.__setattr__(self, "encoding", _LayersEncoding(self))  # not a child: its parameters are ours

    def reset_parameters(self) -> None:
        """u = v = 0; the projections as torch initialises a Linear."""
        nn.init.zeros_(self.pos_bias_u)
        nn.init.zeros_(self.pos_bias_v)
        for projection in (self.linear_q, self.linear_k, self.linear_v, self.linear_out, self.linear_pos):
            projection.reset_parameters()

    @property
    def q_proj(self) -> nn.Linear:
        """linear_q."""
        return self.linear_q

    @property
    def k_proj(self) -> nn.Linear:
        """linear_k."""
        return self.linear_k

    @property
    def v_proj(self) -> nn.Linear:
        """linear_v."""
        return self.linear_v

    @property
    def out_proj(self) -> nn.Linear:
        """linear_out."""
        return self.linear_out

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        return f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, backend={self.backend!r}"


class _LayersEncoding(RelativeEncoding):
    """S_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j]), with the layer's parameters."""

    def __init__(self, layer: RelPositionMultiHeadedAttention) -> None:
        super().__init__()
        object.__setattr__(self, "layer", layer)  # not a child: the layer has this

    def terms(
        self, query: Float[Tensor, "B Hq Lq D"], key: Float[Tensor, "B Hk Lk D"], positions: Positions
    ) -> ScoreTerms:
        """q := q + u, r := q + v, RK = W R."""
        layer = self.layer
        assert isinstance(layer, RelPositionMultiHeadedAttention)
        return projected_terms(
            self, query, positions, layer.pos_bias_u, layer.pos_bias_v, layer.linear_pos, layer.embed_dim, True
        )
