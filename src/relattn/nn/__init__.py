"""Modules: multi-head attention with a relative encoding, and its cache."""

from relattn.nn.attention import RelativeMultiheadAttention
from relattn.nn.cache import KVCache
from relattn.nn.conformer import RelPositionMultiHeadedAttention

__all__ = ["KVCache", "RelPositionMultiHeadedAttention", "RelativeMultiheadAttention"]
