"""relattn for Keras 3: the same encodings and attention on TensorFlow, JAX and PyTorch.

    encoding = relattn.keras.RotaryEmbedding(key_dim)
    attention = relattn.keras.RelativeMultiHeadAttention(num_heads, key_dim, encoding=encoding)

Conventions are the same as in the rest of relattn: the offset is d = key position - query position, and row 0 of a
table belongs to the most distant past. torch is imported only if it is Keras' backend (or if `from_torch` or `to_torch`
is called).
"""

from relattn.keras.alibi import AlibiBias
from relattn.keras.article import Attention, RelativePositionalEmbedding
from relattn.keras.attention import RelativeMultiHeadAttention
from relattn.keras.disentangled import DisentangledEmbedding
from relattn.keras.encoding import EncodingSum, RelativeEncoding
from relattn.keras.exchange import from_torch, projection_from_torch, projection_to_torch, to_torch
from relattn.keras.key_query import KeyQueryEmbedding
from relattn.keras.positions import Positions
from relattn.keras.relative import RelativeEmbedding
from relattn.keras.rotary import RotaryEmbedding
from relattn.keras.shaw import ShawEmbedding
from relattn.keras.t5 import T5Bias
from relattn.keras.table import ComputedTable, OffsetTable
from relattn.keras.terms import ScoreTerms
from relattn.keras.transformer_xl import TransformerXLEmbedding

__all__ = [
    "AlibiBias",
    "Attention",
    "ComputedTable",
    "DisentangledEmbedding",
    "EncodingSum",
    "KeyQueryEmbedding",
    "OffsetTable",
    "Positions",
    "RelativeEmbedding",
    "RelativeEncoding",
    "RelativeMultiHeadAttention",
    "RelativePositionalEmbedding",
    "RotaryEmbedding",
    "ScoreTerms",
    "ShawEmbedding",
    "T5Bias",
    "TransformerXLEmbedding",
    "from_torch",
    "projection_from_torch",
    "projection_to_torch",
    "to_torch",
]
