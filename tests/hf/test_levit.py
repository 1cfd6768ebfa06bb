"""LeViT in evaluation, where the original keeps the biases of its first call."""

import torch
import transformers as hf
from torch import nn

import relattn.hf
from tests.peers.cases.case import drawn


def levit() -> nn.Module:
    config = hf.LevitConfig(
        image_size=160, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 3, 4], depths=[2, 1, 1], key_dim=[4, 6, 8]
    )
    return drawn(hf.LevitModel(config).encoder)


def test_the_whole_encoder() -> None:
    """Grids of 10, 5 and 3, values wider than keys; the small ones are left, and the report says why."""
    model, patches = levit(), torch.randn(2, 100, 16)
    with torch.no_grad():
        expected = model(patches)[0]
        with relattn.hf.patched(model) as report:
            torch.testing.assert_close(model(patches)[0], expected, rtol=1e-4, atol=1e-5)
    assert len(report.changed) == 3
    assert {name[: len("stages.0")]: why for name, why in report.left.items()} == {
        "stages.1": "a grid of 5 x 5 keys has so few pairs that relattn takes longer",
        "stages.2": "a grid of 3 x 3 keys has so few pairs that relattn takes longer",
    }


def test_biases_that_change_in_evaluation() -> None:
    """transformers 5.23: biases that are loaded after a call in evaluation are not used until `train` is called."""
    model, patches = levit(), torch.randn(2, 100, 16)
    with torch.no_grad():
        before = model(patches)[0]
        for name, parameter in model.named_parameters():
            if name.startswith("stages.0") and name.endswith("attention_biases"):
                parameter.mul_(-3.0)
        assert torch.equal(model(patches)[0], before)
        with relattn.hf.patched(model):
            found = model(patches)[0]
        for module in model.modules():
            if hasattr(module, "attention_bias_cache"):
                module.attention_bias_cache = {}
        expected = model(patches)[0]
    assert (expected - before).abs().max() > 0.01
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
