"""Windows of Swin and its kin: shifted, cut short, and their weights."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.swin.modeling_swin import SwinAttention, SwinLayer
from transformers.models.swinv2.modeling_swinv2 import Swinv2Layer

import relattn.hf
from relattn import ShapeError
from relattn.hf.masks import MaskStructure
from relattn.hf.names import parameters
from tests.bad_input.refusal import refused
from tests.peers.cases import CASES, made
from tests.peers.cases.case import LENGTH, drawn

SHIFTED = ["swin", "donut_swin", "maskformer_swin", "clap", "swin_v2", "swin2sr"]


def layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__.endswith("Layer") and has_windows(module)]


def has_windows(module: nn.Module) -> bool:
    return hasattr(module, "shift_size")


@pytest.mark.parametrize("name", SHIFTED)
def test_the_regions_of_shifted_windows(name: str) -> None:
    """Two tokens of a window have one number exactly where the original adds no -100."""
    shifted = layers(made(name))[1]
    for height, width in ((6, 6), (3, 9), (12, 6)):
        sizes: tuple[Any, ...] = ((height, width),) if name == "maskformer_swin" else (height, width)
        taken: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
        more = {name: taken[name] for name in taken.keys() & parameters(shifted.get_attn_mask)}
        expected = shifted.get_attn_mask(*sizes, **more)
        with relattn.hf.patched(shifted):
            found = shifted.get_attn_mask(*sizes, **more)
        assert isinstance(found, MaskStructure)
        ids = found.segment_ids
        assert isinstance(ids, Tensor) and ids.shape == expected.shape[:2]
        assert torch.equal(ids.unsqueeze(1) == ids.unsqueeze(2), expected == 0)
        assert set(expected.unique().tolist()) == {0.0, -100.0}


@pytest.mark.parametrize("name", SHIFTED)
def test_attention_alone(name: str) -> None:
    """In layers that are not patched, which hand it a mask of pairs."""
    model = made(name).double()
    inputs = {name: given.double() for name, given in CASES[name].inputs(LENGTH).items()}
    with torch.no_grad():
        expected = model(**inputs)[0]
        for layer in layers(model):
            relattn.hf.patch(getattr(layer.attention, "self", layer.attention))
        torch.testing.assert_close(model(**inputs)[0], expected, rtol=1e-4, atol=1e-5)
        changed = [type(module).__name__ for module in model.modules() if type(module).__name__.startswith("Relattn")]
        assert sum(name.endswith("Attention") for name in changed) == 2


@pytest.mark.parametrize("name", SHIFTED)
def test_a_layer_whose_attention_cannot_be_changed(name: str) -> None:
    """It hands on pairs, as the original does."""
    model, inputs = made(name), CASES[name].inputs(LENGTH)
    layer = layers(model)[1]
    attention = getattr(layer.attention, "self", layer.attention)
    attention.__class__ = type("Own", (type(attention),), {})
    with torch.no_grad():
        expected = model(**inputs)[0]
        report = relattn.hf.patch(model)
        assert len(report.left) == 1
        torch.testing.assert_close(model(**inputs)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_layer_that_takes_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in transformers 5.4 and 5.10: the original gets what its caller gives."""
    model = made("swin_v2")
    layer = layers(model)[1]
    layer.attention.self.__class__ = type("Own", (type(layer.attention.self),), {})
    expected = layer.get_attn_mask(6, 6, torch.float32)
    made_of = Swinv2Layer.get_attn_mask
    monkeypatch.setattr(
        Swinv2Layer, "get_attn_mask", lambda self, height, width, dtype: made_of(self, height, width, dtype)
    )
    relattn.hf.patch(model)
    found = layer.get_attn_mask(6, 6, dtype=torch.float32)
    assert isinstance(found, Tensor) and torch.equal(found, expected)


@pytest.mark.parametrize("name", ["swin", "donut_swin", "clap", "swin_v2", "swin2sr"])
def test_weights(name: str) -> None:
    """output_attentions=True: those of the last layer of every stage, window by window."""
    model, inputs = made(name), CASES[name].inputs(LENGTH)
    if name == "swin":
        model.config._attn_implementation = "eager"  # which alone returns them
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
        with relattn.hf.patched(model):
            found = model(**inputs, output_attentions=True).attentions
            assert not model(**inputs).attentions
    assert len(found) == len(expected) == 1
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)


def swin(rows: int, columns: int, **changes: Any) -> hf.SwinModel:
    settings = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 3, "patch_size": 2, **changes}
    return drawn(hf.SwinModel(hf.SwinConfig(image_size=(2 * rows, 2 * columns), **settings)))


@pytest.mark.since("5.10", "SwinModel does not support an attention implementation|what relattn needs of swin")
@pytest.mark.parametrize("image", [(7, 10), (3, 8), (12, 4)], ids=str)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_images_of_any_size(image: tuple[int, int], implementation: str) -> None:
    """Windows are filled up, and where the image is no larger than one nothing shifts."""
    model = swin(6, 6, depths=[2], num_heads=[2], attn_implementation=implementation)
    pixels = torch.randn(2, 3, 2 * image[0], 2 * image[1])
    with torch.no_grad():
        expected = model(pixels)[0]
        with relattn.hf.patched(model, strict=True):
            torch.testing.assert_close(model(pixels)[0], expected, rtol=1e-4, atol=1e-5)


def test_an_image_smaller_than_a_window() -> None:
    """The table is that of the window: the original fails to add it, too."""
    model, pixels = swin(6, 6), torch.randn(1, 3, 4, 4)
    with pytest.raises(RuntimeError):
        model(pixels)
    relattn.hf.patch(model)
    with refused(ShapeError, "query_position...: got a grid of 9 tokens beside 4; ..."):
        model(pixels)


def test_a_backbone_in_another_model() -> None:
    """As segmentation models have it."""
    settings = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 3, "patch_size": 2}
    model = drawn(hf.SwinBackbone(hf.SwinConfig(**settings, image_size=12, out_features=["stage1", "stage2"])))
    pixels = torch.randn(2, 3, 14, 20)
    with torch.no_grad():
        expected = model(pixels).feature_maps
        with relattn.hf.patched(model) as report:
            found = model(pixels).feature_maps
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    kinds = [type(module) for module in model.modules()]
    assert len(report.changed) == kinds.count(SwinLayer) + 2 * kinds.count(SwinAttention) == 12
