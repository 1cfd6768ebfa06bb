"""SigLIP 2: its attention runs by name. By that name its pooling head would make a mask for torch's module."""

from __future__ import annotations

from jaxtyping import Float, Shaped
from torch import Tensor
from transformers.models.siglip2.modeling_siglip2 import Siglip2MultiheadAttentionPoolingHead

from relattn.hf.replacement import Replacement


class RelattnSiglip2MultiheadAttentionPoolingHead(Replacement, Siglip2MultiheadAttentionPoolingHead):
    """Siglip2MultiheadAttentionPoolingHead, whose one query sees the patches of the image, by a mask of patches."""

    def forward(
        self, hidden_state: Float[Tensor, "B L width"], attention_mask: Shaped[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B width"]:
        """As the original's."""
        probe = self.probe.expand(hidden_state.shape[0], -1, -1)
        padding = None if attention_mask is None else attention_mask == 0
        pooled = self.attention(probe, hidden_state, hidden_state, key_padding_mask=padding)[0]
        return (pooled + self.mlp(self.layernorm(pooled)))[:, 0]


REPLACEMENTS = {Siglip2MultiheadAttentionPoolingHead: RelattnSiglip2MultiheadAttentionPoolingHead}
"""The module of transformers, and its replacement."""
