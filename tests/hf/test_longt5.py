"""LongT5's encoders: lengths that no block divides, texts shorter than a block, weights by blocks."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import relattn.hf
from relattn.hf import joint
from tests.bad_input.refusal import refused
from tests.hf.twins import FLOAT32, assert_same, twins
from tests.peers.cases.case import BATCH, VOCABULARY, drawn
from tests.peers.cases.t5 import T5

KINDS = ("local", "transient-global")
LENGTHS = (1, 2, 3, 9, 12, 13, 40)


def encoder(kind: str, **changes: Any) -> hf.LongT5EncoderModel:
    settings = {"local_radius": 2, "global_block_size": 4, "encoder_attention_type": kind, **changes}
    return hf.LongT5EncoderModel(hf.LongT5Config(**T5, **settings))


def text(length: int) -> dict[str, Tensor]:
    """The first row ends early, the second begins late."""
    mask = torch.ones(BATCH, length)
    mask[0, length - length // 3 :] = 0
    mask[1, : length // 4] = 0
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, length)), "attention_mask": mask}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(kind: str, length: int) -> None:
    inputs = text(length)
    real = inputs["attention_mask"].bool()
    assert_same(twins(encoder(kind)), lambda model: model(**inputs)[0][real])


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_padding_leaves_no_trace(kind: str) -> None:
    """Its queries see no key: gradients stay finite, and are those of the other text alone."""
    inputs = text(13)
    inputs["attention_mask"][0] = 0
    real = inputs["attention_mask"].bool()
    assert_same(twins(encoder(kind)), lambda model: model(**inputs)[0][real])


def test_blocks_of_a_size_that_is_no_power_of_two() -> None:
    inputs = text(20)
    real = inputs["attention_mask"].bool()
    model = drawn(encoder("transient-global", global_block_size=5))
    with torch.no_grad():
        expected = model(**inputs)[0]
        relattn.hf.patch(model)
        torch.testing.assert_close(model(**inputs)[0][real], expected[real], **FLOAT32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [3, 9, 13])
def test_weights_by_blocks(kind: str, length: int) -> None:
    """[B, blocks, H, block, 3 * block + globals], as the original returns them."""
    inputs, model = text(length), drawn(encoder(kind))
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
        relattn.hf.patch(model)
        found = model(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"].bool()
    assert len(found) == len(expected) == 2
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        ours, theirs = (x.transpose(2, 3).flatten(1, 2)[:, :length][real] for x in (ours, theirs))
        torch.testing.assert_close(ours, theirs, **FLOAT32)


def test_dropout_of_both_sets_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's probability for the window and for the blocks, in both layers."""
    model, seen = encoder("transient-global", dropout_rate=0.3), []
    original = joint.attention_and_lse
    monkeypatch.setattr(joint, "attention_and_lse", lambda *a, **k: seen.append(k["dropout_p"]) or original(*a, **k))
    relattn.hf.patch(model)
    for training, p in ((True, 0.3), (False, 0.0)):
        model.train(training)(**text(9))
        assert seen == [p] * 4
        seen.clear()


@pytest.mark.parametrize("name", ["LocalSelfAttention", "TransientGlobalSelfAttention"])
def test_without_a_mask(name: str) -> None:
    model = encoder("local" if name.startswith("Local") else "transient-global")
    relattn.hf.patch(model)
    with refused(ValueError, "mask: got None; expected the mask that LongT5Stack makes, which says where tokens are"):
        getattr(model.encoder.block[0].layer[0], name)(torch.randn(1, 5, 16))
