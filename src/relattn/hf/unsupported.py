"""The families of transformers that mention relative positions and have no replacement here, each with its reason.

`relative` finds them. A modeling file that it finds must be among `models.FILES` or in one of these tables; a test
checks every file of the installed transformers. A table has packages of transformers.models, or single classes as
PACKAGE.CLASS. In the latter case nothing else in the package has a relative position.
"""

from __future__ import annotations

import re

MARKS = re.compile(
    r"rel(ative)?[_ -]?pos|relative_(attention|embedding|key)|rel(ative)?_bias|rel_h\b|rel_shift|rel_embeddings|alibi"
    r"|distance_embedding|position(al)?[_ ]bias|pos_bias_[uv]|attention_biases|dist_att|rpb|bbox_pos_emb",
    re.IGNORECASE,
)
"""Words in a modeling file that adds something to its scores by relative position."""

LEFT: dict[str, str] = {
    "bros": "each pair of boxes has its own embedding, from the corners of both: no table of offsets holds it",
    "cpmant": "the bias of two tokens in different segments is one number for these two segments, for every offset",
    "dinat": "natten computes its neighbourhoods, which are not windows at the edges, already in linear memory",
    "esmfold2": "the bias of two tokens comes from a state that the model keeps for every pair",
    "gemma3n.Gemma3nAudioAttention": "it computes its scores in chunks, already in linear memory",
    "gemma4.Gemma4AudioAttention": "it computes its scores in chunks, for which its encoder cuts a mask of pairs",
    "pp_doclayout_v2.PPDocLayoutV2ReadingOrderSelfAttention": "the bias of two boxes is computed from the places and "
    "sizes of both: no table of offsets holds it",
    "slanext.SLANeXtAttentionGRUCell": "it attends with one query at a time; its scores are sums, not products",
}  # fmt: skip
"""The families that are left as they are, and why."""

REMAINS: dict[str, str] = {
    "sam3.Sam3Attention": "the decoder's bias of a box and a place is computed from both",
    "sam3_lite_text.Sam3LiteTextAttention": "the decoder's bias of a box and a place is computed from both",
    "udop.UdopAttention": "the encoder rounds the difference of two places on the page, which are fractions: no table "
    "of offsets holds it",
}
"""The families whose attention runs on relattn by name, while their bias of queries x keys remains, and why."""

NO_BIAS: dict[str, str] = {
    "deepseek_v4": "position_bias gates the tokens that become one compressed token",
    "esm": "ESMFold embeds relative positions in its states of two residues, whose attention is its own",
    "grounding_dino": "names in checkpoints of its Swin backbone, which is another package",
    "led": "the words for the entries of its attentions, which are counted from the query",
    "longformer": "the words for the entries of its attentions, which are counted from the query",
    "mm_grounding_dino": "names in checkpoints of its Swin backbone, which is another package",
    "nemotron3_5_asr": "a word about its encoder, which is another package",
    "pp_doclayout_v3": "names of weights that it does not have",
    "tapas": "positions within a cell, whose embeddings are added to the tokens",
}
"""The families whose words mean something else, and what."""


def relative(source: str) -> bool:
    """Whether the code of a modeling file mentions relative positions."""
    return MARKS.search(source) is not None


def reason(table: dict[str, str], package: str, kind: str) -> str | None:
    """The entry of a table for a class, by its own name or by its package."""
    return table.get(package) or table.get(f"{package}.{kind}")


def is_named(package: str) -> bool:
    """Whether a table has an entry for a package, or for a class in it."""
    return any(name.partition(".")[0] == package for table in (LEFT, REMAINS, NO_BIAS) for name in table)
