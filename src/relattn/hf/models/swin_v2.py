"""Swin-v2 and Swin2SR: S = tau cos(q, k) + 16 sigmoid(MLP(dy, dx)) in windows, tau per head and at most 100."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformers.models.swin2sr.modeling_swin2sr import Swin2SRLayer, Swin2SRSelfAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2Layer, Swinv2SelfAttention

from relattn.encodings.log_grid import LARGEST
from relattn.hf.models.swin import WindowAttention, WindowLayer


class _CosineAttention(WindowAttention):
    """The common computation of both. A hidden pair of a shifted window gets -100 twice in the original."""

    times_masked = 2

    def compared(self: Any, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """tau q / |q|, k / |k| and 1."""
        temperature = self.logit_scale.clamp(max=math.log(100.0)).exp()
        return F.normalize(query, dim=-1) * temperature, F.normalize(key, dim=-1), 1.0

    def bias_table(self: Any) -> Float[Tensor, "rows H"]:
        """The network's answer for every offset of a window, which the module lists as `GridBias.bias` does."""
        return LARGEST * self.continuous_position_bias_mlp(self.relative_coords_table).flatten(0, 2).sigmoid()


class RelattnSwinv2SelfAttention(_CosineAttention, Swinv2SelfAttention):
    """Swinv2SelfAttention on relattn."""


class RelattnSwin2SRSelfAttention(_CosineAttention, Swin2SRSelfAttention):
    """Swin2SRSelfAttention on relattn."""


class RelattnSwinv2Layer(WindowLayer, Swinv2Layer):
    """Swinv2Layer for attention on relattn."""


class RelattnSwin2SRLayer(WindowLayer, Swin2SRLayer):
    """Swin2SRLayer for attention on relattn."""


REPLACEMENTS = {
    Swinv2Layer: RelattnSwinv2Layer,
    Swinv2SelfAttention: RelattnSwinv2SelfAttention,
    Swin2SRLayer: RelattnSwin2SRLayer,
    Swin2SRSelfAttention: RelattnSwin2SRSelfAttention,
}
"""The module of transformers, and its replacement."""
