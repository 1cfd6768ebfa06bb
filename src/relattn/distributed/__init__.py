"""Attention over several processes: sequences split over them (`context_parallel_attention`), or heads.

It uses torch.distributed, DeviceMesh and ParallelStyle. Import it by name: `import relattn` needs none of them.
"""

from relattn.distributed.attention import context_parallel_attention, context_parallel_attention_and_lse, explain
from relattn.distributed.choose import Choice
from relattn.distributed.headwise import HeadwiseParallel
from relattn.distributed.parts import join, split, unpadded
from relattn.distributed.styles import ContextParallel, plan

__all__ = [
    "Choice", "ContextParallel", "HeadwiseParallel", "context_parallel_attention",
    "context_parallel_attention_and_lse", "explain", "join", "plan", "split",
    "unpadded",
]  # fmt: skip
