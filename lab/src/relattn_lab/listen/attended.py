"""What a model looks at when it writes a note: the largest weights of every head."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import relattn
from relattn_lab.cache import LabCache
from relattn_lab.model import Block, LabModel

RANKS = 3
"""So many weights are kept of every head."""
WHOLE = 255
"""A weight of 1, as a byte."""


@dataclass(frozen=True, eq=False)
class Attended:
    """The RANKS largest weights of each head for each of n tokens, the largest first.

    back: uint16 [layers, heads, n, RANKS], how far back the attended token lies, in tokens. shares: uint8, the weights
    times 255; 0 where there are no more, and for what is no token of the tune.
    """

    back: np.ndarray
    shares: np.ndarray

    def as_json(self) -> dict[str, Any]:
        """The arrays as base64 of their bytes, little-endian, and their shape."""
        layers, heads, tokens, ranks = self.back.shape
        back, shares = (base64.b64encode(array.tobytes()).decode() for array in (self.back.astype("<u2"), self.shares))
        return {
            "layers": layers, "heads": heads, "tokens": tokens, "ranks": ranks, "back": back, "shares": shares,
        }  # fmt: skip


@torch.no_grad()
def attended_by(model: LabModel, tokens: np.ndarray) -> Attended:
    """What `model` looks at when it writes each of `tokens` [n], which stand after "begin".

    The model reads "begin" and all tokens but the last, as it does when it composes: no layer looks back further than
    the trained length. Input i predicts token i. Input j holds token j - 1. So weight j belongs to token j - 1,
    i - (j - 1) tokens back, and the weight of "begin" belongs to no token.
    """
    given = torch.from_numpy(np.append(0, tokens[:-1]))[None].to(model.device)
    length = model.config.length
    found: list[torch.Tensor] = []

    def look(block: Block, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        attention, x = block.attention, block.attention_norm(arguments[0])
        q, k, v = (
            project(x).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        places = arguments[3] if len(arguments) > 3 else options.get("places")
        beside = {} if places is None else {"query_position": places, "key_position": places}
        found.append(
            relattn.attention_weights(
                q, k, v, encoding=attention.encoding, window=(length - 1, 0), scale=attention.scale, **beside
            )[0]
        )

    handles = [block.register_forward_pre_hook(look, with_kwargs=True) for block in model.blocks]
    try:
        model(given, past_key_values=LabCache(model.config.depth, length))
    finally:
        for handle in handles:
            handle.remove()
    weights = torch.stack(found)  # [layers, heads, n, n]
    weights[..., 0] = 0.0
    ranks = min(RANKS, weights.shape[-1])
    largest, places = weights.topk(ranks, dim=-1)
    back = torch.arange(len(tokens), device=places.device)[:, None] - (places - 1)
    shares = (largest * WHOLE).round().to(torch.uint8).cpu().numpy()
    return Attended(np.where(shares > 0, back.cpu().numpy(), 0).astype(np.uint16), shares)
