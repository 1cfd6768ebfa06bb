"""Switch Transformers with experts, Pop2Piano from sounds, Pix2Struct with masks of its own."""

import torch
import transformers as hf

import relattn.hf
from tests import seeds
from tests.hf.twins import assert_same, twins
from tests.peers.cases import made
from tests.peers.cases.case import BATCH, LENGTH, VOCABULARY, WIDTH, drawn, padding, pairs_of_texts
from tests.peers.cases.t5 import T5
from tests.peers.cases.t5_like import patches_and_text


def test_switch_transformers_with_experts() -> None:
    config = hf.SwitchTransformersConfig(
        **T5, num_decoder_layers=2, num_experts=3, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1
    )
    inputs = pairs_of_texts(LENGTH)
    assert_same(
        twins(hf.SwitchTransformersForConditionalGeneration(config)), lambda model: model(**inputs, use_cache=False)[0]
    )


def test_pop2piano_from_sounds() -> None:
    """`generate` of its own, which puts the composer's token before the frames."""
    config = hf.Pop2PianoConfig(**T5, composer_vocab_size=2)
    model = drawn(hf.Pop2PianoForConditionalGeneration(config))
    model.generation_config.composer_to_feature_token = {"composer1": 2, "composer2": 3}
    frames, found = torch.randn(BATCH, LENGTH, WIDTH), []
    for patched in (False, True):
        if patched:
            relattn.hf.patch(model)
        seeds.start_torch(3)
        found.append(model.generate(frames.clone(), attention_mask=padding(LENGTH), max_new_tokens=6))
    assert torch.equal(*found)


def test_pix2struct_with_masks_of_pairs() -> None:
    """The decoder's, written down by the caller, for more keys than there are; and no padding of patches."""
    inputs = patches_and_text(LENGTH)
    inputs.pop("attention_mask")
    targets = inputs["decoder_input_ids"].shape[1]
    seen = torch.ones(BATCH, 1, targets, targets + 3, dtype=torch.bool).tril()
    seen[:, :, 3:, 1] = False
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    inputs["flattened_patches"][0, -3:] = 0.0
    model = made("pix2struct")
    with torch.no_grad():
        expected = model(**inputs, decoder_attention_mask=added)[0]
        relattn.hf.patch(model)
        torch.testing.assert_close(model(**inputs, decoder_attention_mask=added)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_text_decoder_alone() -> None:
    """Pix2Struct's, without a memory."""
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    text = twins(made("pix2struct").decoder)
    assert_same(text, lambda model: model(tokens, attention_mask=padding(LENGTH), use_cache=False)[0][:, 3:8])
