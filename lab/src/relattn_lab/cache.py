"""relattn's key-value caches behind the cache interface of transformers, so that `generate` decodes with them."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from relattn.nn import KVCache

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What the installed transformers calls the cache of a model: in calls, in outputs and in `generate`."""


class LabCacheLayer(CacheLayerMixin):
    """The `KVCache` of one layer, `kv`.

    The attention layer appends to it; transformers reads its length and reorders it.
    """

    def __init__(self, max_length: int | None):
        super().__init__()
        self.kv = KVCache(max_length)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the cache takes shape, dtype and device from what is appended first."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Append keys and values [B, H, L, D]; returns all of them."""
        return self.kv.append(key_states, value_states)

    def get_seq_length(self) -> int:
        """Number of tokens seen, those included that a rolling cache no longer holds."""
        return self.kv.next_position

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(number of tokens seen after the next append, index of the first): masks cover them all."""
        return self.kv.next_position + query_length, 0

    def get_max_length(self) -> int:
        """-1: there is no limit."""
        return -1

    def reset(self) -> None:
        """Forget everything."""
        self.kv = KVCache(self.kv.max_length)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Make row b the former row beam_idx[b] (beam search)."""
        if self.kv.length:
            self.kv.reorder(beam_idx)


class LabCache(Cache):
    """One `LabCacheLayer` per block of the model; with `max_length` each rolls (see `KVCache`)."""

    def __init__(self, depth: int, max_length: int | None = None):
        super().__init__(layers=[LabCacheLayer(max_length) for _ in range(depth)])

    def kv(self, layer: int) -> KVCache:
        """The `KVCache` of that block."""
        return self.layers[layer].kv  # pyright: ignore[reportAttributeAccessIssue]
