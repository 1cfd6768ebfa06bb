"""Prompts padded on either side, whatever the padding holds: what a cache keeps of it reaches no other token."""

import pytest
import torch

from relattn import ShawEmbedding
from relattn.nn import KVCache, RelativeMultiheadAttention

BATCH, PROMPT, NEW = 2, 6, 3


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend", ["reference", "dense", "blocks"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e38])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts(side: str, poison: float, backend: str) -> None:
    layer = RelativeMultiheadAttention(16, 2, encoding=ShawEmbedding(8, 2), backend=backend).eval()
    lengths = torch.tensor([[4], [6]])
    slots = torch.arange(PROMPT)
    real = slots >= PROMPT - lengths if side == "left" else slots < lengths
    prompt, tokens = torch.randn(BATCH, PROMPT, 16), torch.randn(BATCH, NEW, 16)
    kept = torch.cat([real, torch.ones(BATCH, NEW, dtype=torch.bool)], dim=1)

    def decoded(padding: float) -> list[torch.Tensor]:
        cache = KVCache()
        given = prompt.masked_fill(~real.unsqueeze(-1), padding)
        with torch.no_grad():
            answers = [layer(given, key_mask=real, is_causal=True, cache=cache)[real]]
            for i in range(NEW):
                mask = kept[:, : PROMPT + i + 1]
                answers.append(layer(tokens[:, i : i + 1], key_mask=mask, is_causal=True, cache=cache))
        return answers

    for found, plain in zip(decoded(poison), decoded(0.0), strict=True):
        assert plain.isfinite().all()
        assert torch.equal(found, plain)
