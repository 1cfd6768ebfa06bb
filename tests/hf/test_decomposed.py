"""Models around SAM's image encoder, and the attention weights of those like it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

import relattn.hf
from tests.hf.twins import assert_same_weights
from tests.peers.cases import CASES, made
from tests.peers.cases.case import BATCH, HEADS, LENGTH, WIDTH, drawn, theirs
from tests.peers.cases.decomposed import SAM

IMAGE = 8
"""4 x 4 patches."""


@pytest.mark.parametrize(
    "name", ["sam_eager", "sam_without_a_table", "sam_hq_eager", "got_ocr2", "slanext", "pp_formulanet",
             "deepseek_ocr2_of_another_grid", "vitdet", "vitdet_of_another_grid", "seggpt"]
)  # fmt: skip
def test_attention_weights(name: str) -> None:
    """output_attentions=True: those of all windows and all heads, as the original lays them out; else none."""
    assert_same_weights(made(name), **CASES[name].inputs(LENGTH))


@pytest.mark.parametrize("name", ["sam", "sam_hq", "deepseek_ocr2", "unlimited_ocr"])
def test_attention_weights_that_the_original_cannot_return(name: str) -> None:
    """Its class for scaled_dot_product_attention returns None."""
    case, model = CASES[name], made(name)
    inputs = case.inputs(LENGTH)
    with torch.no_grad():
        assert model(**inputs, output_attentions=True).attentions == ()
        relattn.hf.patch(model)
        windows, whole = model(**inputs, output_attentions=True).attentions
    assert windows.shape == (4 * BATCH * HEADS, 9, 9) and whole.shape == (BATCH * HEADS, 25, 25)
    for weights in (windows, whole):
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))


def sam(prefix: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """With the decoder of masks, whose attention goes by its name."""
    config, vision, prompt, decoder, model = (
        getattr(hf, f"{prefix}{part}")
        for part in ("Config", "VisionConfig", "PromptEncoderConfig", "MaskDecoderConfig", "Model")
    )
    settings = config(
        vision_config=vision(**{**SAM, "output_channels": WIDTH}, image_size=IMAGE, num_pos_feats=WIDTH // 2).to_dict(),
        prompt_encoder_config=prompt(
            hidden_size=WIDTH, image_size=IMAGE, patch_size=2, mask_input_channels=8
        ).to_dict(),
        mask_decoder_config=decoder(
            hidden_size=WIDTH, mlp_dim=24, num_attention_heads=2, iou_head_hidden_dim=8,
            **({"vit_dim": WIDTH} if prefix == "SamHQ" else {}),
        ).to_dict(),
    )  # fmt: skip
    return drawn(model(settings)), {
        "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE),
        "input_points": torch.rand(BATCH, 1, 2, 2) * IMAGE,
    }


def got_ocr2(_: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """With the language model that reads the image's one token."""
    text = {"model_type": "qwen2", "vocab_size": 40, "hidden_size": WIDTH, "num_hidden_layers": 1,
            "num_attention_heads": HEADS, "num_key_value_heads": 2, "intermediate_size": 24}  # fmt: skip
    vision = {**SAM, "image_size": IMAGE}
    config = hf.GotOcr2Config(vision_config=vision, text_config=text, image_token_index=39, pad_token_id=0)
    tokens = torch.randint(3, 39, (BATCH, 9))
    tokens[:, 2] = 39
    images = torch.randn(BATCH, 3, IMAGE, IMAGE)
    return drawn(hf.GotOcr2ForConditionalGeneration(config)), {"input_ids": tokens, "pixel_values": images}


def deepseek_ocr2(_: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """With the encoder behind it, whose patches see each other and whose queries the past."""
    behind = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 1, "intermediate_size": 24}  # fmt: skip
    vision = {**SAM, "image_size": 2 * IMAGE, "downsample_channels": [8, 8]}
    model, config = theirs("deepseek_ocr2", "DeepseekOcr2VisionModel", "DeepseekOcr2VisionConfig")
    whole = model(config(sam_config=vision, encoder_config=behind))
    return drawn(whole), {"pixel_values": torch.randn(BATCH, 3, 2 * IMAGE, 2 * IMAGE)}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("make", "prefix", "output"),
    [
        (sam, "Sam", "pred_masks"),
        (sam, "SamHQ", "pred_masks"),
        (got_ocr2, "", "logits"),
        (deepseek_ocr2, "", "last_hidden_state"),
    ],
)
def test_the_whole_model(make: Callable[[str], Any], prefix: str, output: str) -> None:
    model, inputs = make(prefix)
    with torch.no_grad():
        expected = model(**inputs)[output]
        with relattn.hf.patched(model) as report:
            found = model(**inputs)[output]
    assert report.changed and not report.left and not report.remains
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_attention_weights_of_layers_that_are_checkpointed() -> None:
    """Computed again in the backward pass, a layer is not asked for them; gradients reach it through them yet."""
    case, model = CASES["sam_eager"], made("sam_eager").train()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.gradient_checkpointing = True
            module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    pixels = case.inputs(LENGTH)["pixel_values"].requires_grad_()

    def gradients() -> tuple[Tensor, ...]:
        found = model(pixel_values=pixels, output_attentions=True)
        loss = found[0].square().mean() + sum(weights.square().mean() for weights in found.attentions)
        return torch.autograd.grad(loss, [pixels, *model.parameters()])

    expected = gradients()
    relattn.hf.patch(model)
    for ours, other in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)
