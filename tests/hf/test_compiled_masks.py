"""Masks by name in a graph: what transformers' functions allow is asked of them, and no pair is written down."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers import masking_utils

from relattn import UnsupportedError
from relattn.hf.mask_functions import relattn_mask
from relattn.hf.probed_masks import probe
from tests import seeds
from tests.bad_input.refusal import refused

pytest_plugins = ["tests.contract.fresh"]

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODELS: dict[str, Callable[..., Any]] = {
    "mistral": lambda **how: hf.MistralForCausalLM._from_config(
        hf.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=3), **how
    ),
    "modernbert": lambda **how: hf.ModernBertModel._from_config(
        hf.ModernBertConfig(**SIZES, **TOKENS, cls_token_id=1, sep_token_id=2, local_attention=4), **how
    ),
}
MADE: dict[str, Callable[[], Callable]] = {
    "a window": lambda: masking_utils.sliding_window_causal_mask_function(3),
    "a window on both sides": lambda: masking_utils.sliding_window_bidirectional_mask_function(3),
    "two windows": lambda: masking_utils.and_masks(
        masking_utils.sliding_window_overlay(5), masking_utils.sliding_window_bidirectional_mask_function(3)
    ),
    "causality": lambda: masking_utils.and_masks(
        masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", MADE)
def test_functions_made_in_the_graph(how: str) -> None:
    """The same structure as without a graph."""

    def said(x: Tensor) -> tuple[Any, ...]:
        mask = relattn_mask(1, 5, 5, mask_function=MADE[how]())
        return x + 1.0, mask.is_causal, mask.window, mask.attn_mask

    _, *expected = said(torch.zeros(1))
    _, *found = torch.compile(said, backend="eager", fullgraph=True)(torch.zeros(1))
    assert found == expected
    assert found[-1] is None and (found[0] or found[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padded", [False, True])
def test_a_model_with_windows(name: str, padded: bool) -> None:
    """In one graph, as with "sdpa"."""
    tokens, mask = torch.randint(3, 40, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask if padded else None}
    seeds.start_torch(0)
    model = MODELS[name](attn_implementation="sdpa").eval()
    with torch.no_grad():
        expected = model(**inputs)[0]
        model.set_attn_implementation("relattn")
        found = torch.compile(model, backend="eager", fullgraph=True)(**inputs)[0]
    kept = mask.bool() if padded else torch.ones_like(mask, dtype=torch.bool)
    torch.testing.assert_close(found[kept], expected[kept], rtol=1e-4, atol=1e-5)


ELSE: dict[str, Callable] = {
    "keys ahead": lambda batch, head, query, key: query <= key,
    "a distance in the past": lambda batch, head, query, key: key <= query - 2,
    "keys from one on": lambda batch, head, query, key: key >= 1,
    "the other distance": lambda batch, head, query, key: abs(key - query) <= 2,
    "a window that looks ahead": lambda batch, head, query, key: query > key - 2,
}


@pytest.mark.parametrize("what", ELSE)
def test_other_functions_are_refused(what: str) -> None:
    """Rather than misread."""
    with refused(
        UnsupportedError,
        "attn_implementation='relattn': a mask function asks for something else than causality and windows, which a "
        "graph cannot be told; compile the model without fullgraph=True",
    ):
        probe(masking_utils.and_masks(masking_utils.causal_mask_function, ELSE[what]))


def test_other_compositions_are_left_to_pairs() -> None:
    """Images, and functions of other modules."""
    either = masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function)
    assert probe(either) is None
    assert probe(ELSE["keys ahead"]) is None
