"""BEiT's masks, grids and layers, where they are not those of a model alone on its own grid."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.beit.modeling_beit import BeitAttention

import relattn.hf
from relattn import UnsupportedError
from relattn.hf.models.beit import GridMask
from tests import seeds
from tests.bad_input.refusal import refused
from tests.peers.cases import made
from tests.peers.cases.beit import PATCH, SETTINGS
from tests.peers.cases.case import HEADS, LENGTH, drawn, padding


def beit(rows: int, columns: int, **changes: Any) -> hf.BeitModel:
    settings = {**SETTINGS, "use_relative_position_bias": True, **changes}
    config = hf.BeitConfig(image_size=(PATCH * rows, PATCH * columns), **settings)
    return drawn(hf.BeitModel(config, add_pooling_layer=False))


def pixels(rows: int, columns: int) -> Tensor:
    return torch.randn(2, 3, PATCH * rows, PATCH * columns)


def both(model: nn.Module, *inputs: Tensor, **keywords: Any) -> tuple[Tensor, Tensor]:
    """The last hidden states of the model, and of it patched."""
    with torch.no_grad():
        expected = model(*inputs, **keywords)[0]
        with relattn.hf.patched(model):
            return model(*inputs, **keywords)[0], expected


@pytest.mark.parametrize("name", ["beit", "beit_shared", "data2vec_vision", "data2vec_vision_shared"])
@pytest.mark.parametrize("image", [(5, 5), (4, 6)], ids=str)
def test_interpolated_pairs(name: str, image: tuple[int, int]) -> None:
    """interpolate_pos_encoding=True: the pairs are resized to the size that they have already."""
    found, expected = both(made(name), pixels(*image), interpolate_pos_encoding=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["beit", "data2vec_vision"])
def test_pairs_of_another_size(name: str) -> None:
    """Nobody but a caller of the module itself asks for them; they are what the original makes."""
    module = next(m for m in made(name).modules() if type(m).__name__.endswith("RelativePositionBias"))
    expected = module((3, 4), True, 20)
    relattn.hf.patch(module)
    found = module((3, 4), True, 20)
    assert isinstance(found, GridMask) and found.table is None
    assert torch.equal(found.structure.attn_mask, expected)


@pytest.mark.parametrize("image", [(3, 5), (6, 4)], ids=str)
def test_a_model_of_an_oblong_grid(image: tuple[int, int]) -> None:
    """transformers 5.23 reads the table [2 h - 1, 2 w - 1] as [2 w - 1, 2 h - 1], and so do we, for equal outputs."""
    found, expected = both(beit(3, 5), pixels(*image))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_transformers_counts_a_boolean_mask_as_a_number() -> None:
    """transformers 5.23: with sdpa the mask [B, 1, L, L] is boolean, and adding it to a bias adds 1 where it keeps.

    With eager padding is masked; and so it is here, whichever name the model was loaded with.
    """
    mask = padding(26)
    inputs = pixels(5, 5)
    outputs = {}
    for name in ("eager", "sdpa"):
        seeds.start_torch(0)
        outputs[name] = both(beit(5, 5, attn_implementation=name), inputs, attention_mask=mask)
    ours, theirs = outputs["eager"]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs["sdpa"][0], theirs, rtol=1e-4, atol=1e-5)
    assert (outputs["sdpa"][1] - theirs).abs().max() > 0.01


def test_a_mask_of_pairs() -> None:
    """The caller's own."""
    model = beit(5, 5, attn_implementation="eager")
    pairs = torch.where(torch.rand(2, 1, 26, 26) < 0.3, -1e4, 0.0)
    found, expected = both(model, pixels(5, 5), attention_mask=pairs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["beit", "beit_both_padded", "data2vec_vision", "data2vec_vision_both"])
def test_a_layer_alone(name: str) -> None:
    """Beside layers that are not patched, and with the bias that their model makes for them."""
    model = made(name)
    inputs = pixels(5, 5)
    layer = next(module for module in model.modules() if isinstance(module, nn.ModuleList))[1]
    with torch.no_grad():
        expected = model(inputs)[0]
        assert relattn.hf.patch(layer).changed
        torch.testing.assert_close(model(inputs)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_backbone() -> None:
    """As depth models have it: feature maps of several layers, and images of another size."""
    config = hf.BeitConfig(
        **SETTINGS, image_size=10, use_relative_position_bias=True, out_features=["stage1", "stage2"]
    )
    model = drawn(hf.BeitBackbone(config))
    inputs = pixels(4, 7)
    with torch.no_grad():
        expected = model(inputs).feature_maps
        with relattn.hf.patched(model, strict=True):
            found = model(inputs).feature_maps
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_one_attention_that_cannot_be_changed() -> None:
    """It would get a bias without pairs."""
    model = made("beit_shared")
    one = [module for module in model.modules() if type(module) is BeitAttention][1]
    one.__class__ = type("Own", (BeitAttention,), {})
    with refused(
        UnsupportedError,
        "model: ... cannot be changed (Own is a subclass, and may compute something else than its base) and takes its "
        "masks from where others take theirs; nothing was changed",
    ):
        relattn.hf.patch(model)


def test_a_bias_without_pairs_in_attention_that_was_not_patched() -> None:
    model = made("data2vec_vision_shared")
    relattn.hf.patch(next(m for m in model.modules() if type(m).__name__ == "Data2VecVisionRelativePositionBias"))
    with refused(UnsupportedError, "attention_mask: ... got a bias without pairs from a patched module; ..."):
        model(pixels(5, 5))


def test_data2vec_s_weights() -> None:
    """With sdpa the original returns none; ours does when they are asked for."""
    model = made("data2vec_vision_both")
    inputs = pixels(5, 5)
    relattn.hf.patch(model)
    with torch.no_grad():
        weights = model(inputs, output_attentions=True).attentions
        assert model(inputs).attentions is None
    assert [w.shape for w in weights] == [(2, HEADS, 26, 26)] * 2
    assert LENGTH < 26
