"""attn_implementation="relattn": relattn behind transformers' attention and mask interfaces."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from relattn.api import attention_weights, relative_attention
from relattn.hf.mask_functions import relattn_mask
from relattn.hf.masks import MaskStructure, as_structure
from relattn.hf.unsupported_kwargs import check_kwargs, check_mask

if TYPE_CHECKING:
    from relattn.encodings.base import RelativeEncoding
    from relattn.equation.terms import ScoreTerms

NAME = "relattn"
"""The name for `attn_implementation`."""


def register() -> None:
    """Make "relattn" a name for `attn_implementation`: with the attention alone, causality would be lost."""
    AttentionInterface.register(NAME, relattn_attention)
    AttentionMaskInterface.register(NAME, relattn_mask)


def relattn_attention(
    module: nn.Module,
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    attention_mask: MaskStructure | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Float[Tensor, "#B Hq Lq Lk"] | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, "Hq"] | None = None,
    sinks: Float[Tensor, "B Hq Lq 1"] | None = None,
    **kwargs: object,
) -> tuple[Float[Tensor, "B Lq Hq Dv"], Float[Tensor, "B Hq Lq Lk"] | None]:
    """Attention of a model that was loaded with attn_implementation="relattn", under transformers' signature.

    position_bias is added to the scores unchanged, quadratic as the model made it. `relattn.hf.patch` replaces modules
    that make one.

    softcap caps the scores (Gemma 2). s_aux are sinks per head (gpt-oss), sinks those per token and head (Inkling 2).

    Raises ShapeError: for a mask of tokens; UnsupportedError: for other keywords that change the result.
    """
    check_mask(module, attention_mask)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    structure = as_structure(attention_mask, bool(causal), key.shape[2] - query.shape[2])
    check_kwargs(module, structure, kwargs)
    if position_bias is not None:
        structure = add_to_scores(structure, position_bias)
    with_weights = asks_for_weights(module, kwargs)
    logits = s_aux if sinks is None else sinks.squeeze(-1)
    return attend(
        module, query, key, value, structure, None, scaling, dropout, with_weights, softcap=softcap, sinks=logits
    )


def attend(
    module: nn.Module,
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"],
    structure: MaskStructure,
    terms: RelativeEncoding | ScoreTerms | None,
    scale: float | None,
    dropout_p: float,
    with_weights: bool,
    *,
    softcap: float | None = None,
    key_bias: Float[Tensor, "#B #Hq Lk"] | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "B Hq Lq"] | None = None,
) -> tuple[Float[Tensor, "B Lq Hq Dv"], Float[Tensor, "B Hq Lq Lk"] | None]:
    """relative_attention for a transformers module, and the weights before dropout, if wanted.

    The module's attribute `relattn_backend` names the backend, "auto" without one.
    """
    keywords = {
        **structure.keywords(), "scale": scale, "enable_gqa": query.shape[1] != key.shape[1], "encoding": terms,
        "key_bias": key_bias, "softcap": softcap, "sinks": sinks,
    }  # fmt: skip
    output = relative_attention(
        query, key, value, dropout_p=dropout_p, backend=getattr(module, "relattn_backend", "auto"), **keywords
    )
    weights = None
    if with_weights:
        with keep_saved_tensors():
            weights = attention_weights(query, key, value, **keywords)
    return output.transpose(1, 2).contiguous(), weights


def keep_saved_tensors() -> AbstractContextManager[object]:
    """Keeps the saved tensors in a checkpointed layer too, because the recomputation may not return weights."""
    if torch.compiler.is_compiling():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved)


def asks_for_weights(module: nn.Module, kwargs: dict[str, object]) -> bool:
    """Whether the caller wants `attentions` among the model's outputs."""
    flag = kwargs.get("output_attentions")
    return bool(getattr(getattr(module, "config", None), "output_attentions", False) if flag is None else flag)


def add_to_scores(structure: MaskStructure, bias: Float[Tensor, "#B Hq #Lq Lk"]) -> MaskStructure:
    """The structure with numbers added to the scores of its pairs."""
    mask = structure.attn_mask
    if mask is None:
        summed = bias
    elif mask.dtype == torch.bool:
        summed = bias.masked_fill(~mask, float("-inf"))
    else:
        summed = bias + mask
    return replace(structure, attn_mask=summed)
