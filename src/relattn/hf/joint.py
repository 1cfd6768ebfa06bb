"""Joint attention: two sets of keys, each with its own positions and masks, in one softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relattn.api import attention_and_lse, attention_weights
from relattn.equation.tables import wide
from relattn.equation.terms import ScoreTerms
from relattn.hf import interface
from relattn.hf.masks import MaskStructure


class Keys(NamedTuple):
    """A set of keys with their values, and the encoding, positions and masks for them."""

    key: Float[Tensor, "B H Lk D"]
    value: Float[Tensor, "B H Lk Dv"]
    structure: MaskStructure
    terms: ScoreTerms | None


def attend_jointly(
    module: nn.Module,
    query: Float[Tensor, "B H Lq D"],
    first: Keys,
    second: Keys,
    scale: float | None,
    dropout_p: float,
    with_weights: bool,
) -> tuple[Float[Tensor, "B Lq H Dv"], tuple[Float[Tensor, "B H Lq L1"], Float[Tensor, "B H Lq L2"]] | None]:
    """O = (1 - s) O1 + s O2, where s = sigmoid(lse2 - lse1) is the share of the second set.

    If wanted, it also gives the weights of both sets before dropout; their sum over both sets is 1. A query that sees
    no key of either set gets 0.
    """
    (output, lse), (other, other_lse) = (_attended(module, query, keys, scale, dropout_p) for keys in (first, second))
    share = torch.sigmoid(other_lse - lse).unsqueeze(-1)
    joint = torch.lerp(wide(output), wide(other), share).to(output.dtype).transpose(1, 2).contiguous()
    if not with_weights:
        return joint, None
    with interface.keep_saved_tensors():
        weights, other_weights = (
            attention_weights(
                query, keys.key, keys.value, scale=scale, encoding=keys.terms, **keys.structure.keywords()
            )
            for keys in (first, second)
        )  # fmt: skip
    return joint, ((weights * (1.0 - share)).to(weights.dtype), (other_weights * share).to(weights.dtype))


def _attended(
    module: nn.Module, query: Float[Tensor, "B H Lq D"], keys: Keys, scale: float | None, dropout_p: float
) -> tuple[Float[Tensor, "B H Lq Dv"], Float[Tensor, "B H Lq"]]:
    """O and lse of one set. Where a query sees no key, lse is the lowest number: differences of -inf are undefined."""
    output, lse = attention_and_lse(
        query, keys.key, keys.value, dropout_p=dropout_p, scale=scale, encoding=keys.terms,
        backend=getattr(module, "relattn_backend", "auto"), **keys.structure.keywords(),
    )  # fmt: skip
    return output, lse.masked_fill(lse.isneginf(), torch.finfo(lse.dtype).min)
