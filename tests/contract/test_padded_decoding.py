"""Batches padded on either side through a cache: each row's numbers are those it has alone, for every encoding."""

import numpy as np
import pytest
import torch

from relattn.nn import KVCache
from tests.contract.calls import assert_equal, chunk_sizes
from tests.contract.test_decoding import every_module, module_of

pytest_plugins = ["tests.contract.fresh"]

PROMPT = 6
FIRST, STOP = torch.tensor([[0], [1], [2]]), torch.tensor([[3], [6], [5]])
"""Three prompts of six slots: one padded on the right, one on the left, one on both sides."""
SLOTS = torch.arange(PROMPT)
KEPT = (SLOTS >= FIRST) & (SLOTS < STOP)
BEAMS = torch.tensor([2, 0, 0, 1])


@pytest.mark.one_in(3)
@every_module
@pytest.mark.parametrize("max_length", [None, 4])
def test_padding_on_either_side(name: str, max_length: int | None, rng: np.random.Generator) -> None:
    """Prompts in chunks, then tokens where each row's prompt stopped, half of them in beams."""
    layer, cache = module_of(name, rng, length=12), KVCache(max_length)
    prompts, tokens = torch.randn(3, PROMPT, 5).double(), torch.randn(4, 4, 5).double()
    window = None if max_length is None else (max_length - 1, 0)
    positions = SLOTS.minimum(STOP - 1)  # a rolling cache drops what lies too far behind the padding, too
    with torch.set_grad_enabled(bool(rng.integers(2))):
        for slots in SLOTS.split(chunk_sizes(rng, PROMPT)):
            explicit = {} if max_length is None else {"query_position": positions[:, slots]}
            seen = KEPT[:, : slots[-1] + 1]
            layer(prompts[:, slots], is_causal=True, key_mask=seen, cache=cache, **explicit)

        kept, stop, histories, outputs = KEPT, STOP, [*prompts], []
        for steps in (torch.arange(1), torch.arange(1, 2), torch.arange(2, 4)):
            if steps[0] == 2:
                cache.reorder(BEAMS)
                kept, stop = kept[BEAMS], stop[BEAMS]
                histories = [histories[b] for b in BEAMS.tolist()]
                outputs = [output[BEAMS] for output in outputs]
            new = tokens[: len(histories), steps]
            kept = torch.cat([kept, torch.ones(len(kept), len(steps), dtype=torch.bool)], dim=1)
            histories = [torch.cat(both) for both in zip(histories, new, strict=True)]
            outputs.append(layer(new, is_causal=True, key_mask=kept, cache=cache, query_position=stop + steps))

        together = torch.cat(outputs, dim=1)
        for row, history in enumerate(histories):
            alone = layer(history[kept[row]][None], is_causal=True, window=window)
            assert_equal(together[row : row + 1], alone[:, -4:])
    if max_length is not None:
        assert cache.first_position > 0, "nothing was dropped"


@every_module
def test_positions_are_cut_with_their_slots(name: str, rng: np.random.Generator) -> None:
    """Tokens after a right-padded prompt are taken back, then others come; padding at the front is forgotten."""
    layer, cache = module_of(name, rng, length=12), KVCache()
    prompts, wrong, right = (torch.randn(2, n, 5).double() for n in (4, 3, 2))
    stop = torch.tensor([[2], [4]])
    kept = torch.cat([torch.arange(4) < stop, torch.ones(2, 2, dtype=torch.bool)], dim=1)
    with torch.no_grad():
        layer(prompts, is_causal=True, key_mask=kept[:, :4], cache=cache)
        layer(wrong, is_causal=True, cache=cache, query_position=stop + torch.arange(3))
        cache.truncate(4)
        cache.forget(1)
        together = layer(right, is_causal=True, key_mask=kept, cache=cache, query_position=stop + torch.arange(2))
        for row in range(2):
            history = torch.cat([prompts[row, : stop[row]], right[row]])[None]
            forgotten = torch.arange(history.shape[1])[None] >= 1
            assert_equal(together[row : row + 1], layer(history, is_causal=True, key_mask=forgotten)[:, -2:])
