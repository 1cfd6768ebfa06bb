"""Keys and values through transformers' caches, as its encoder-decoder models use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import EncoderDecoderCache

KeysAndValues = tuple[Float[Tensor, "B H Lk D"], Float[Tensor, "B H Lk D"]]


def cached(cache: Any, layer: Any, crossing: bool, make: Callable[[], KeysAndValues]) -> KeysAndValues:
    """The keys and values of all tokens so far. `make` makes those of the new tokens, or of the memory.

    cache: None, a cache, or an encoder-decoder's two. crossing: attention to a memory; the encoder-decoder's cache
        holds its keys and values from the first call on.
    """
    both = isinstance(cache, EncoderDecoderCache)
    mine = (cache.cross_attention_cache if crossing else cache.self_attention_cache) if both else cache
    if crossing and both and cache.is_updated.get(layer):
        return mine.layers[layer].keys, mine.layers[layer].values
    key, value = make()
    if mine is not None:
        key, value = mine.update(key, value, layer)
        if crossing and both:
            cache.is_updated[layer] = True
    return key, value
