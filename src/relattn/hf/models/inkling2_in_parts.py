"""The attention of Inkling 2 from transformers 5.24 on, and of Inkling 2 Loop, whose projections are modules of their own.

They clip the projected states, scale queries and r, and gate the output.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from relattn.hf.interface import asks_for_weights
from relattn.hf.masks import MaskStructure
from relattn.hf.models.inkling import attend_relatively
from relattn.hf.names import CACHE, ours
from relattn.hf.replacement import Replacement


class Sliding(Replacement):
    """The attention of layers with a window."""

    needs = ("relative_position_bias",)

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None,
        relative_distance: Tensor | None = None,
        conv_mask: Tensor | None = None,
        past_key_values: Any = None,
        key_hidden_states: Float[Tensor, "B L width"] | None = None,
        value_hidden_states: Float[Tensor, "B L width"] | None = None,
        cache_offset: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under the original's arguments."""
        sources = (hidden_states if one is None else one for one in (key_hidden_states, value_hidden_states))
        past = {CACHE: past_key_values, "conv_mask": conv_mask, "cache_offset": cache_offset}
        return _attended(self, hidden_states, *sources, attention_mask, past, kwargs)


class Full(Replacement):
    """The attention of layers without a window."""

    needs = ("relative_position_bias",)

    def forward(
        self: Any,
        hidden_states: Float[Tensor, "B L width"],
        key_hidden_states: Float[Tensor, "B L width"],
        value_hidden_states: Float[Tensor, "B L width"],
        attention_mask: MaskStructure | Tensor | None,
        relative_distance: Tensor | None = None,
        conv_mask: Tensor | None = None,
        past_key_values: Any = None,
        cache_offset: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, attention weights if wanted), under the original's arguments."""
        past = {CACHE: past_key_values, "conv_mask": conv_mask, "cache_offset": cache_offset}
        return _attended(self, hidden_states, key_hidden_states, value_hidden_states, attention_mask, past, kwargs)


def _attended(
    module: Any,
    hidden_states: Float[Tensor, "B L width"],
    of_keys: Float[Tensor, "B L width"],
    of_values: Float[Tensor, "B L width"],
    mask: MaskStructure | Tensor | None,
    past: dict[str, Any],
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """(output, attention weights if wanted). One sink per token and head."""
    places, bias = kwargs["position_ids"], module.relative_position_bias
    query = module.q_proj(hidden_states, places)
    key, value = module.k_proj(of_keys, **past, **kwargs), module.v_proj(of_values, **past, **kwargs)
    relative = bias.norm(bias.linear(hidden_states).unflatten(-1, (bias.num_heads, -1)), places)
    output, weights = attend_relatively(
        module, *(features.transpose(1, 2) for features in (query, key, value)), relative, bias.proj, mask,
        past[CACHE], asks_for_weights(module, kwargs), module.sink_proj(hidden_states).transpose(1, 2),
        cache_offset=past["cache_offset"],
    )  # fmt: skip
    return module.o_proj(output, hidden_states), weights


def without_distances(model: type) -> Any:
    """The model's forward, which then makes no distances of queries x keys: its layers read them from positions."""
    plain: Any = inspect.unwrap(model.forward)
    names = {**plain.__globals__, "get_relative_distance": lambda *_, **__: None}
    without = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return without(self, *args, **{CACHE if ours(name) == ours(CACHE) else name: kwargs[name] for name in kwargs})

    return merge_with_config_defaults(capture_outputs(forward))
