"""The families of transformers that speak of relative positions and have no replacement here, each with its reason.

`relative` finds them: a modeling file that it finds must be among `models.FILES` or in one of these tables, which a
test asserts for every file of the installed transformers.
"""

from __future__ import annotations

import re

MARKS = re.compile(
    r"rel_pos|relative_pos|relative_attention|relative_embedding|relative_key|rel_h\b|rel_shift|rel_embeddings|alibi"
    r"|distance_embedding|position_bias|pos_bias_[uv]|attention_biases|relative_bias|rel_bias|dist_att",
    re.IGNORECASE,
)
"""What a modeling file says that adds something to its scores by relative position."""

LEFT: dict[str, str] = {}
"""Left as they are: by the package in transformers.models, why."""

REMAINS: dict[str, str] = {}
"""Their attention goes by its name to relattn, and their bias of queries x keys remains: why."""

NO_BIAS: dict[str, str] = {}
"""Those whose marks mean something else: what."""


def relative(source: str) -> bool:
    """Whether the code of a modeling file speaks of relative positions."""
    return MARKS.search(source) is not None
