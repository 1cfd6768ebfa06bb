"""VisibleBlocks: found once for all calls with the same masks, with the same answers; refused beside other masks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
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
    "a row of pairs": {"attn_mask": KEPT[1]},
    "one number for all pairs": {"attn_mask": torch.tensor(True)},
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


@pytest.mark.parametrize(("batch", "of_pairs"), [((), ()), ((1, 2), (2, HEADS)), ((3, 2), (2, 1)), ((3, 2), (3, 1, 1))])
def test_axes_before_the_heads(batch: tuple[int, ...], of_pairs: tuple[int, ...]) -> None:
    masks: dict[str, Any] = {
        "key_mask": KEPT[1].expand(*batch, LENGTH), "segment_ids": IDS[0].expand(*batch, LENGTH),
        "attn_mask": torch.ones(*of_pairs, LENGTH, LENGTH).tril() > 0,
    }  # fmt: skip
    leaves = inputs(*batch)
    expected = relative_attention(*leaves, **masks, backend="native")
    shared = relative_attention(*leaves, **masks, backend="native", visible_blocks=VisibleBlocks(**masks))
    assert torch.equal(shared, expected)


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


def test_a_graph_finds_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves, blocks, found = inputs(2), VisibleBlocks(key_mask=KEPT), counted(monkeypatch)

    def attend(key_mask: Tensor, blocks: VisibleBlocks | None) -> Tensor:
        return relative_attention(*leaves, key_mask=key_mask, visible_blocks=blocks, backend="native")

    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(KEPT, blocks), attend(KEPT, None))
    found.clear()
    compiled(KEPT, blocks)
    assert found == ["_of_keys"]


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


def test_items_of_a_list_are_those_that_it_was_made_of() -> None:
    ids = [IDS, IDS]
    blocks = VisibleBlocks(segment_ids=ids)  # pyright: ignore[reportArgumentType]
    relative_attention(*inputs(2), segment_ids=ids, visible_blocks=blocks)  # pyright: ignore[reportArgumentType]
    ids[0] = IDS.flip(-1)
    with pytest.raises(ValueError, match="visible_blocks: got those of another segment_ids"):
        relative_attention(*inputs(2), segment_ids=ids, visible_blocks=blocks)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
def test_a_copy_finds_its_own(copied: Callable[[Any], Any]) -> None:
    """However often the original's mask was changed before and the copy's after."""
    kept = KEPT.clone()
    for _ in range(2):
        kept[0, 3] = False
    blocks = VisibleBlocks(key_mask=kept)
    leaves = inputs(2)
    relative_attention(*leaves, key_mask=kept, visible_blocks=blocks, backend="native")
    kept, blocks = copied((kept, blocks))
    assert blocks.key_mask is kept
    kept[0] = False
    shared = relative_attention(*leaves, key_mask=kept, visible_blocks=blocks, backend="native")
    assert torch.equal(shared, relative_attention(*leaves, key_mask=kept, backend="native"))


def test_a_mask_of_inference_mode_may_change() -> None:
    """Each call finds its own."""
    with torch.inference_mode():
        kept = KEPT.clone()
        blocks, leaves = VisibleBlocks(key_mask=kept), inputs(2)
        for _ in range(2):
            kept.logical_not_()
            shared = relative_attention(*leaves, key_mask=kept, visible_blocks=blocks, backend="native")
            assert torch.equal(shared, relative_attention(*leaves, key_mask=kept, backend="native"))


def test_training_after_a_call_in_inference_mode() -> None:
    blocks, leaves = VisibleBlocks(key_mask=KEPT), inputs(2)
    with torch.inference_mode():
        relative_attention(*leaves, key_mask=KEPT, visible_blocks=blocks, backend="native")
    relative_attention(*leaves, key_mask=KEPT, visible_blocks=blocks, backend="native").sum().backward()
    assert leaves[0].grad is not None
