"""Inkling 2: Inkling's scores, with one sink per token and head."""

from __future__ import annotations

from transformers.models.inkling2 import modeling_inkling2
from transformers.models.inkling2.modeling_inkling2 import (
    Inkling2BlockAttentionResidual,
    Inkling2FullAttention,
    Inkling2SlidingAttention,
    Inkling2TextModel,
)

from relattn.hf.models import inkling2_until_5_23
from relattn.hf.models.inkling2_in_parts import Bias, Full, Sliding, without_distances
from relattn.hf.replacement import Replacement
from relattn.hf.whole_model import WholeModel


class RelattnInkling2SlidingAttention(Sliding, Inkling2SlidingAttention):
    """Inkling2SlidingAttention on relattn."""


class RelattnInkling2FullAttention(Full, Inkling2FullAttention):
    """Inkling2FullAttention on relattn."""


class RelattnInkling2TextModel(WholeModel, Inkling2TextModel):
    """Inkling2TextModel, which makes no distances of queries x keys."""

    forward = without_distances(Inkling2TextModel)


class RelattnInkling2BlockAttentionResidual(Replacement, Inkling2BlockAttentionResidual):
    """Inkling2BlockAttentionResidual, unchanged: every token attends only to its own states in the layers below."""


REPLACEMENTS = {Inkling2BlockAttentionResidual: RelattnInkling2BlockAttentionResidual}
if hasattr(modeling_inkling2, "get_relative_distance"):

    class RelattnInkling2RelativePositionBias(Bias, modeling_inkling2.Inkling2RelativePositionBias):
        """Inkling2RelativePositionBias, which gives r and RK away."""

    REPLACEMENTS |= {
        Inkling2SlidingAttention: RelattnInkling2SlidingAttention,
        Inkling2FullAttention: RelattnInkling2FullAttention,
        Inkling2TextModel: RelattnInkling2TextModel,
        modeling_inkling2.Inkling2RelativePositionBias: RelattnInkling2RelativePositionBias,
    }
else:
    REPLACEMENTS |= inkling2_until_5_23.REPLACEMENTS
"""The modules of transformers, and their replacements."""
