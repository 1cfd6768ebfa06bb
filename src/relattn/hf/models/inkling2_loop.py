"""Inkling 2 Loop: Inkling 2, some of whose layers are run several times, each time with a cache of their own."""

from __future__ import annotations

from transformers.models.inkling2_loop.modeling_inkling2_loop import (
    Inkling2LoopBlockAttentionResidual,
    Inkling2LoopFullAttention,
    Inkling2LoopMessageAttentionResidual,
    Inkling2LoopRelativePositionBias,
    Inkling2LoopSlidingAttention,
    Inkling2LoopTextModel,
)

from relattn.hf.models.inkling2_in_parts import Bias, Full, Sliding, without_distances
from relattn.hf.replacement import Replacement
from relattn.hf.whole_model import WholeModel


class RelattnInkling2LoopSlidingAttention(Sliding, Inkling2LoopSlidingAttention):
    """Inkling2LoopSlidingAttention on relattn."""


class RelattnInkling2LoopFullAttention(Full, Inkling2LoopFullAttention):
    """Inkling2LoopFullAttention on relattn."""


class RelattnInkling2LoopRelativePositionBias(Bias, Inkling2LoopRelativePositionBias):
    """Inkling2LoopRelativePositionBias, which gives r and RK away."""


class RelattnInkling2LoopBlockAttentionResidual(Replacement, Inkling2LoopBlockAttentionResidual):
    """Unchanged: every token attends only to its own states in the layers below."""


class RelattnInkling2LoopMessageAttentionResidual(Replacement, Inkling2LoopMessageAttentionResidual):
    """Unchanged: every token attends only to its own states in the pass before."""


class RelattnInkling2LoopTextModel(WholeModel, Inkling2LoopTextModel):
    """Inkling2LoopTextModel, which makes no distances of queries x keys."""

    forward = without_distances(Inkling2LoopTextModel)


REPLACEMENTS = {
    Inkling2LoopSlidingAttention: RelattnInkling2LoopSlidingAttention,
    Inkling2LoopFullAttention: RelattnInkling2LoopFullAttention,
    Inkling2LoopRelativePositionBias: RelattnInkling2LoopRelativePositionBias,
    Inkling2LoopBlockAttentionResidual: RelattnInkling2LoopBlockAttentionResidual,
    Inkling2LoopMessageAttentionResidual: RelattnInkling2LoopMessageAttentionResidual,
    Inkling2LoopTextModel: RelattnInkling2LoopTextModel,
}
"""The modules of transformers, and their replacements."""
