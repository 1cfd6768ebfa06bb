"""MPNet beyond its last bucket, with masks of pairs, and what it refuses."""

import pytest
import torch
import transformers as hf

import relattn.hf
from relattn import UnsupportedError
from tests.bad_input.refusal import refused
from tests.hf.twins import assert_same, twins
from tests.peers.cases.case import BATCH, LENGTH, TEXT, VOCABULARY


def mpnet(buckets: int = 32) -> hf.MPNetModel:
    config = hf.MPNetConfig(**TEXT, intermediate_size=24, relative_attention_num_buckets=buckets)
    return hf.MPNetModel(config, add_pooling_layer=False)


def test_offsets_beyond_the_last_bucket() -> None:
    """The distance 128 is the last that has a bucket of its own beginning."""
    tokens = torch.randint(3, VOCABULARY, (1, 300))
    assert_same(twins(mpnet()), lambda model: model(tokens)[0])


def test_every_bucket() -> None:
    """Numbers next to a bucket's edge are rounded as the original rounds them."""
    encoder = mpnet().encoder
    expected = encoder.compute_position_bias(torch.zeros(1, 700, 1))[0]
    original = encoder.relative_attention_bias.weight
    relattn.hf.patch(model := torch.nn.ModuleList([encoder]))
    torch.testing.assert_close(model[0].compute_position_bias(torch.zeros(1, 700, 1)), original, rtol=0, atol=0)
    offsets = torch.arange(700)
    query = torch.zeros(1, 700, 16)
    attention = encoder.layer[0].attention.attn
    for projection in (attention.q, attention.k):
        torch.nn.init.zeros_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    weights = attention(query, position_bias=original, output_attentions=True)[1]
    assert offsets.numel() == weights.shape[-1]
    torch.testing.assert_close(weights[0], expected.softmax(-1), rtol=1e-5, atol=1e-7)


@pytest.mark.since("5.10", "Wrong shape for input_ids")
@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_a_mask_of_pairs_that_the_caller_wrote(kind: torch.dtype) -> None:
    pairs = torch.rand(BATCH, 1, LENGTH, LENGTH) < 0.5
    pairs |= torch.eye(LENGTH, dtype=torch.bool)
    added = torch.zeros(pairs.shape, dtype=torch.float64).masked_fill(~pairs, torch.finfo(torch.float64).min)
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    original, patched = twins(mpnet())
    given = {id(original): added, id(patched): pairs if kind is torch.bool else added}  # eager would add True as 1
    assert_same((original, patched), lambda model: model(tokens, attention_mask=given[id(model)])[0])


def test_what_is_refused() -> None:
    with refused(
        UnsupportedError,
        "model: encoder cannot be changed (relative_attention_num_buckets=8 is below the 32 of MPNet's rule) and takes "
        "its masks from where others take theirs; nothing was changed",
    ):
        relattn.hf.patch(mpnet(8))
    model = mpnet()
    relattn.hf.patch(model)
    with refused(
        UnsupportedError,
        "position_ids: got a tensor; relattn counts offsets from the tokens' places; leave it out, or call "
        "relattn.hf.unpatch",
    ):
        model.encoder.compute_position_bias(torch.zeros(1, 3, 16), torch.zeros(1, 3, dtype=torch.long))
