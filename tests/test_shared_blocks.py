"""VisibleBlocks: found once for all calls with the same masks, with the same answers; refused beside other masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import T5Bias, VisibleBlocks, attention_weights, relative_attention
from relattn.backends.select import BACKENDS
from relattn.equation import visible_blocks
from relattn.nn import KVCache, RelativeMultiheadAttention

HEADS, WIDTH, LENGTH = 2, 8, 160
IDS = torch.arange(LENGTH)[None].expand(2, -1) // 50
KEPT = torch.arange(LENGTH) < torch.tensor([[LENGTH], [70]])
MASKS: dict[str, dict[str, Any]] = {
    "a key mask": {"key_mask": KEPT},
    "segments": {"segment_ids": IDS},
    "two sides": {"segment_ids": (IDS, IDS.int())},
    "pairs": {"attn_mask": IDS[0, :, None] == IDS[0]},
    "pairs of heads": {"attn_mask": (IDS[0, :, None] == IDS[0]).expand(2, HEADS, -1, -1)},
    "a float mask": {"attn_mask": torch.zeros(LENGTH, LENGTH).masked_fill(IDS[0, :, None] != IDS[0], -torch.inf)},
    "all": {"key_mask": KEPT, "segment_ids": IDS, "attn_mask": torch.ones(2, 1, 1, LENGTH).bool()},
}


def inputs(*batch: int) -> list[Tensor]:
    return [torch.randn(*batch, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3)]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with each mask whose blocks are found."""
    found: list[str] = []
    for name in ("_of_keys", "_of_ids", "_of_pairs"):
        whole = getattr(visible_blocks, name)

        def count(*mask: Tensor, name: str = name, whole: Any = whole, **others: bool) -> Tensor:
            found.append(name)
            return whole(*mask, **others)

        monkeypatch.setattr(visible_blocks, name, count)
    return found


@pytest.mark.parametrize("backend", ["auto", *(name for name in BACKENDS if name not in ("sdpa", "triton"))])
@pytest.mark.parametrize("masks", MASKS)
def test_answers_and_gradients_are_those_of_a_call_alone(masks: str, backend: str) -> None:
    """Of the same bits."""
    given, leaves, encoding = MASKS[masks], inputs(2), T5Bias(HEADS)
    found = []
    for shared in ({}, {"visible_blocks": VisibleBlocks(**given)}):
        output = relative_attention(*leaves, encoding=encoding, backend=backend, **given, **shared)
        found.append([output, *torch.autograd.grad(output.square().sum(), [*leaves, *encoding.parameters()])])
    for alone, shared in zip(*found, strict=True):
        assert torch.equal(alone, shared)


def test_axes_before_the_heads() -> None:
    masks: dict[str, Any] = {"key_mask": KEPT.view(1, 2, LENGTH), "segment_ids": IDS.reshape(1, 2, LENGTH)}
    leaves = inputs(1, 2)
    expected = relative_attention(*leaves, **masks)
    assert torch.equal(relative_attention(*leaves, **masks, visible_blocks=VisibleBlocks(**masks)), expected)


@pytest.mark.parametrize("masks", MASKS)
def test_they_are_found_once(masks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For two layers, forward and backward; without them each pass finds its own."""
    found, given = counted(monkeypatch), MASKS[masks]

    def trains(**shared: VisibleBlocks) -> int:
        found.clear()
        query, key, value = inputs(2)
        for _ in range(2):
            query = relative_attention(query, key, value, backend="native", **given, **shared)
        query.sum().backward()
        return len(found)

    assert trains(visible_blocks=VisibleBlocks(**given)) == len(given)
    assert trains() == 4 * len(given)


def test_a_layer_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(monkeypatch)
    layer, features = RelativeMultiheadAttention(HEADS * WIDTH, HEADS), torch.randn(2, LENGTH, HEADS * WIDTH)
    blocks = VisibleBlocks(key_mask=KEPT)
    expected = layer(features, key_mask=KEPT)
    found.clear()
    for _ in range(2):
        assert torch.equal(layer(features, key_mask=KEPT, visible_blocks=blocks), expected)
    assert found == ["_of_keys"]
    with pytest.raises(ValueError, match="visible_blocks: came with a cache, whose masks are others in each call"):
        layer(features, cache=KVCache(), key_mask=KEPT, visible_blocks=blocks)


def test_a_graph_finds_its_own() -> None:
    leaves, blocks = inputs(2), VisibleBlocks(key_mask=KEPT)

    def attend(key_mask: Tensor, blocks: VisibleBlocks | None) -> Tensor:
        return relative_attention(*leaves, key_mask=key_mask, visible_blocks=blocks, backend="native")

    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(KEPT, blocks), attend(KEPT, None))


def test_masks_that_are_empty() -> None:
    nothing, masks = [torch.randn(2, HEADS, 0, WIDTH) for _ in range(3)], {"key_mask": torch.ones(2, 0).bool()}
    assert relative_attention(*nothing, **masks, visible_blocks=VisibleBlocks(**masks)).shape == nothing[0].shape


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"key_mask": KEPT.clone()}, "key_mask"),
        ({}, "key_mask"),
        ({"key_mask": KEPT, "segment_ids": IDS}, "segment_ids"),
        ({"key_mask": KEPT, "attn_mask": MASKS["pairs"]["attn_mask"]}, "attn_mask"),
    ],
)
def test_other_masks_are_refused(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"visible_blocks: got those of another {name} than the call's; expected"):
        attention_weights(*inputs(2), **given, visible_blocks=VisibleBlocks(key_mask=KEPT))


def test_a_mask_that_has_changed_is_refused() -> None:
    kept = KEPT.clone()
    blocks = VisibleBlocks(key_mask=kept)
    kept[0, 3] = False  # before the first call
    leaves = inputs(2)
    relative_attention(*leaves, key_mask=kept, visible_blocks=blocks)
    kept[0, 4] = False
    with pytest.raises(ValueError, match="visible_blocks: got those of a mask that was changed in place since"):
        relative_attention(*leaves, key_mask=kept, visible_blocks=blocks)


def test_another_object_is_refused() -> None:
    with pytest.raises(TypeError, match=r"visible_blocks: got .*; expected relattn.VisibleBlocks, or None"):
        relative_attention(*inputs(2), key_mask=KEPT, visible_blocks=KEPT)  # pyright: ignore[reportArgumentType]


def test_masks_of_inference_mode() -> None:
    with torch.inference_mode():
        kept = KEPT.clone()
        blocks = VisibleBlocks(key_mask=kept)
        query, key, value = inputs(2)
        shared = relative_attention(query, key, value, key_mask=kept, visible_blocks=blocks)
        assert torch.equal(shared, relative_attention(query, key, value, key_mask=kept))
