"""Inkling 2 from transformers 5.24 on, and Inkling 2 Loop: their projections clip, scale and gate, too."""

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
from relattn.hf.names import CACHE, canonical_name
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
        key_states = hidden_states if key_hidden_states is None else key_hidden_states
        value_states = hidden_states if value_hidden_states is None else value_hidden_states
        past = {CACHE: past_key_values, "conv_mask": conv_mask, "cache_offset": cache_offset}
        return _attended(self, (hidden_states, key_states, value_states), attention_mask, past, kwargs)


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
        states = hidden_states, key_hidden_states, value_hidden_states
        return _attended(self, states, attention_mask, past, kwargs)


class Bias(Replacement):
    """What holds the relative keys, and the projection of the relative queries."""

    def forward(
        self: Any, hidden_states: Float[Tensor, "B L width"], relative_distance: None, position_ids: Tensor
    ) -> tuple[Float[Tensor, "B L H R"], Float[Tensor, "1 extent R"]]:
        """r, and RK of the offsets 1 - extent .. 0, under the original's arguments."""
        relative = self.norm(self.linear(hidden_states).unflatten(-1, (self.num_heads, -1)), position_ids)
        return relative, self.proj.flip(1).transpose(0, 1).unsqueeze(0)


def _attended(
    module: Any,
    states: tuple[Tensor, Tensor, Tensor],
    mask: MaskStructure | Tensor | None,
    past: dict[str, Any],
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """(output, attention weights if wanted). One sink per token and head.

    states [B, L, width]: what queries, keys and values are projected from.
    """
    hidden_states, of_keys, of_values = states
    places = kwargs["position_ids"]
    query = module.q_proj(hidden_states, places).transpose(1, 2)
    key, value = (
        projection(source, **past, **kwargs).transpose(1, 2)
        for projection, source in ((module.k_proj, of_keys), (module.v_proj, of_values))
    )
    relative, profiles = module.relative_position_bias(hidden_states, None, places)
    sinks, with_weights = module.sink_proj(hidden_states).transpose(1, 2), asks_for_weights(module, kwargs)
    output, weights = attend_relatively(
        module, query, key, value, relative, profiles, mask, past[CACHE], with_weights, sinks,
        cache_offset=past["cache_offset"],
    )  # fmt: skip
    return module.o_proj(output, hidden_states), weights


def without_distances(model: type) -> Any:
    """The model's forward, which then makes no distances of queries x keys: its layers read them from positions."""
    plain: Any = inspect.unwrap(model.forward)
    names = {**plain.__globals__, "get_relative_distance": lambda *_, **__: None}
    without = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    without.__kwdefaults__ = plain.__kwdefaults__

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return without(
            self,
            *args,
            **{CACHE if canonical_name(name) == canonical_name(CACHE) else name: kwargs[name] for name in kwargs},
        )

    return merge_with_config_defaults(capture_outputs(forward))
