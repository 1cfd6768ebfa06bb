"""Inkling 2: Inkling's scores, with one sink per token and head."""

from __future__ import annotations

from torch import nn
from transformers.models.inkling2 import modeling_inkling2
from transformers.models.inkling2.modeling_inkling2 import (
    Inkling2BlockAttentionResidual,
    Inkling2FullAttention,
    Inkling2SlidingAttention,
    Inkling2TextModel,
)

from relattn.hf.models import inkling2_in_parts, inkling2_until_5_23
from relattn.hf.replacement import Replacement
from relattn.hf.whole import WholeModel

IN_PARTS = hasattr(modeling_inkling2, "Inkling2RelativePositionBias")
"""Whether the projections are modules of their own, as from transformers 5.24 on."""

form = inkling2_in_parts if IN_PARTS else inkling2_until_5_23


class RelattnInkling2SlidingAttention(form.Sliding, Inkling2SlidingAttention):
    """Inkling2SlidingAttention on relattn."""


class RelattnInkling2FullAttention(form.Full, Inkling2FullAttention):
    """Inkling2FullAttention on relattn."""


class RelattnInkling2BlockAttentionResidual(Replacement, Inkling2BlockAttentionResidual):
    """Inkling2BlockAttentionResidual, unchanged: every token attends only to its own states in the layers below."""


REPLACEMENTS: dict[type[nn.Module], type[Replacement]] = {
    Inkling2SlidingAttention: RelattnInkling2SlidingAttention,
    Inkling2FullAttention: RelattnInkling2FullAttention,
    Inkling2BlockAttentionResidual: RelattnInkling2BlockAttentionResidual,
}
"""The modules of transformers, and their replacements."""

if IN_PARTS:

    class RelattnInkling2TextModel(WholeModel, Inkling2TextModel):
        """Inkling2TextModel, which makes no distances of queries x keys."""

        forward = inkling2_in_parts.without_distances(Inkling2TextModel)

    REPLACEMENTS[Inkling2TextModel] = RelattnInkling2TextModel
