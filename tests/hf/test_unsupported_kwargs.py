"""What relattn_attention does with the masks and keywords that models hand it; and that it knows all their keywords."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from relattn import ShapeError, UnsupportedError
from relattn.hf.interface import relattn_attention
from relattn.hf.masks import MaskStructure
from relattn.hf.unsupported_kwargs import CHANGES, SEQUENCES
from tests.bad_input.refusal import refused

FILES = [*Path(transformers.__file__).parent.glob("models/*/modeling_*.py")]
BATCH, LENGTH = 6, 6
HARMLESS: dict[str, str] = {
    "deterministic": "a wish for flash attention's backward pass",
    "kernel_options": "sizes of flex attention's tiles",
    "max_length_k": "the longest of packed sequences",
    "max_length_q": "the longest of packed sequences",
    "position_ids": "packed sequences, which the mask tells apart",
    "sliding_window": "a window, which the mask has",
}
"""Keywords that need not be read: what they bring."""


def states() -> Tensor:
    return torch.randn(BATCH, 2, LENGTH, 4)


@pytest.mark.parametrize("name", CHANGES)
def test_keywords_that_change_the_result(name: str) -> None:
    query = states()
    with refused(
        UnsupportedError,
        f"attn_implementation='relattn': Identity hands its attention {name}, {CHANGES[name]}, which relattn does not "
        "read; load the model with 'sdpa' or 'eager'",
    ):
        relattn_attention(nn.Identity(), query, query, query, None, **{name: torch.zeros(1)})
    relattn_attention(nn.Identity(), query, query, query, None, **{name: None})


@pytest.mark.parametrize("name", SEQUENCES)
def test_packed_sequences(name: str) -> None:
    """Refused unless the mask parts them, or there is one alone."""
    query, ends = states(), torch.tensor([0, 2, LENGTH])
    with refused(
        UnsupportedError,
        f"attn_implementation='relattn': Identity hands its attention {name} of 2 packed sequences, which its mask "
        "does not tell apart; give position_ids that start anew in each, and no attention_mask",
    ):
        relattn_attention(nn.Identity(), query, query, query, None, **{name: ends})
    parted = MaskStructure(segment_ids=(torch.arange(LENGTH) >= 2).long().expand(BATCH, -1))
    relattn_attention(nn.Identity(), query, query, query, parted, **{name: ends})
    relattn_attention(nn.Identity(), query, query, query, None, **{name: ends[::2]})


def test_a_mask_of_tokens() -> None:
    """As many of them as elements in the batch: it could pass for pairs."""
    query = states()
    with refused(
        ShapeError,
        "attention_mask: Identity got shape [6, 6]; expected a mask of pairs, [batch, heads or 1, queries, keys]; give "
        "a mask of tokens to the model, or as relattn.hf.MaskStructure(key_mask=...)",
    ):
        relattn_attention(nn.Identity(), query, query, query, torch.ones(BATCH, LENGTH, dtype=torch.bool))


def keywords_of_calls() -> Iterator[str]:
    """Those that a modeling file names where it calls its attention."""
    for path in FILES:
        code = path.read_text()
        calls = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)) if CALLED in code else ()
        for call in calls:
            if isinstance(call.func, ast.Name) and call.func.id == CALLED:
                yield from (keyword.arg for keyword in call.keywords if keyword.arg is not None)


CALLED = "attention_interface"


@pytest.mark.slow
def test_every_keyword_of_transformers_is_known() -> None:
    found = set(keywords_of_calls())
    assert len(found) > 15, "the walk has found no calls"
    read = {*inspect.signature(relattn_attention).parameters, "output_attentions"}
    assert not sorted(found - {*read, *CHANGES, *HARMLESS, *SEQUENCES})
