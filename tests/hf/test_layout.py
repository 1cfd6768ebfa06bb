"""LayoutLMv3 with an image and in every setting of its biases, and what cannot be told of layers alone; UDOP."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch.nn.utils import parametrize

import relattn.hf
from relattn import UnsupportedError
from tests.bad_input.refusal import refused
from tests.hf.twins import assert_same_weights
from tests.peers.cases import CASES, made
from tests.peers.cases.case import BATCH, HEADS, LENGTH, VOCABULARY, WIDTH, drawn, padding, pairs_of_texts
from tests.peers.cases.layout import boxes, layout_lm_v2, layout_lm_v3


def test_attention_weights_beside_an_image() -> None:
    """Those of text and patches, where they are asked for."""
    model: Any = made("layoutlmv3")
    model.set_attn_implementation("eager")  # without it the original gives none
    found, _ = assert_same_weights(model, **CASES["layoutlmv3"].inputs(LENGTH))
    for weights in found.attentions:
        assert weights.shape == (BATCH, HEADS, LENGTH + 5, LENGTH + 5)


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("page", [False, True])
def test_which_biases_are_added(image: bool, sequence: bool, page: bool) -> None:
    """LayoutLMv3 adds those of the page beside those of the sequence alone, LayoutLMv2 without them, too."""
    settings = {"has_relative_attention_bias": sequence, "has_spatial_attention_bias": page}
    for case in (layout_lm_v3(image=image, **settings), layout_lm_v2(**settings)):
        model, inputs = drawn(case.make(LENGTH)), case.inputs(LENGTH)
        with torch.no_grad():
            expected = case.output(model(**inputs), inputs)
            relattn.hf.patch(model)
            torch.testing.assert_close(case.output(model(**inputs), inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["layoutlmv2", "layoutlmv3"])
def test_the_biases_get_no_gradients(name: str) -> None:
    """transformers 5.23 and 5.24: they are looked up under no_grad, and so never trained; the same here."""
    for patched in (False, True):
        case, model = CASES[name], made(name)
        if patched:
            relattn.hf.patch(model)
        inputs = case.inputs(LENGTH)
        case.output(model(**inputs), inputs).square().mean().backward()
        assert {key for key, one in model.named_parameters() if one.grad is None} == {
            key for key, _ in model.named_parameters() if "rel_pos" in key
        }


@pytest.mark.parametrize(("name", "kind"), [("layoutlmv2", "LayoutLMv2"), ("layoutlmv3", "LayoutLMv3")])
def test_a_layer_alone(name: str, kind: str) -> None:
    """Its encoder would hand it biases of pairs."""
    layer = next(module for module in made(name).modules() if type(module).__name__ == f"{kind}Layer")
    with refused(
        UnsupportedError,
        f"model: relattn can change no attention of {kind}Layer ({kind}SelfAttention shares its bias with the other "
        f"layers of a {kind}Encoder; patch that, or the model); it is as it was",
    ):
        relattn.hf.patch(layer)


def test_masks_of_pairs() -> None:
    """LayoutLMv2's encoder with a mask that hides pairs, each query another key."""
    case, model = CASES["layoutlmv2"], made("layoutlmv2")
    inputs = case.inputs(LENGTH) | {"attention_mask": torch.eye(LENGTH).expand(BATCH, 1, LENGTH, LENGTH)}
    with torch.no_grad():
        expected = model(**inputs)[0]
        relattn.hf.patch(model)
        torch.testing.assert_close(model(**inputs)[0], expected, rtol=1e-4, atol=1e-5)


def test_one_row_of_positions_for_all() -> None:
    """The encoder takes position_ids and boxes of a batch of one for every element."""
    case, model = CASES["layoutlmv2"], made("layoutlmv2")
    inputs = case.inputs(LENGTH)
    inputs |= {name: inputs[name][:1] for name in ("position_ids", "bbox")}
    with torch.no_grad():
        expected = case.output(model(**inputs), inputs)
        relattn.hf.patch(model)
        torch.testing.assert_close(case.output(model(**inputs), inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.since("5.18", "UdopAttention takes no attn_implementation")
def test_udop_keeps_its_biases() -> None:
    """Outputs and gradients are the model's own, and the report says what remains, also of a wrapped module."""
    config = hf.UdopConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=4, d_ff=24, num_layers=2, num_heads=HEADS, image_size=4,
        patch_size=2, max_2d_position_embeddings=30, decoder_start_token_id=0,
    )  # fmt: skip
    model = drawn(hf.UdopForConditionalGeneration(config))
    inputs = {**pairs_of_texts(LENGTH), "attention_mask": padding(LENGTH), "bbox": boxes(LENGTH) / 60.0}
    table = model.encoder.relative_bias.biases[1].relative_attention_bias.weight

    def outcome() -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(**inputs).logits
        return logits.detach(), torch.autograd.grad(logits.square().mean(), table)[0]

    expected = outcome()
    attention = model.encoder.block[0].layer[0].SelfAttention
    attention.register_buffer("scale", torch.ones(()))
    parametrize.register_parametrization(attention, "scale", torch.nn.Identity())
    report = relattn.hf.patch(model)
    assert len(report.remains) == 6 and not report.changed and not report.left
    for ours, theirs in zip(outcome(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
