"""WavLM as a whole model, and its buckets where its own rounding decides them."""

import pytest
import torch
import transformers as hf

import relattn.hf
from relattn import UnsupportedError
from tests.bad_input.refusal import refused
from tests.hf.twins import assert_same_weights
from tests.peers.cases import made
from tests.peers.cases.case import HEADS, drawn
from tests.peers.cases.wavlm import WAVLM


def test_every_bucket_of_the_published_models() -> None:
    """320 buckets up to a distance of 800: the original rounds the sum of two parts, not the logarithm alone."""
    attention = drawn(hf.WavLMModel(hf.WavLMConfig(**WAVLM))).encoder.layers[0].attention
    expected = attention.compute_bias(1700, 1700)
    relattn.hf.patch(torch.nn.ModuleList([attention]))
    biases = attention._biases()
    ends = biases[:, :1].expand(-1, 1700), biases[:, -1:].expand(-1, 1700)
    every = torch.cat([ends[0], biases, ends[1]], dim=1)
    middle = every.shape[1] // 2
    assert torch.equal(every[:, middle : middle + 1700], expected[:, 0])
    assert torch.equal(every[:, middle - 1699 : middle + 1], expected[:, -1])


@pytest.mark.parametrize("stable", [False, True])
def test_the_whole_model(stable: bool) -> None:
    """From samples, with the attention weights among the outputs, which are the mean of all heads."""
    config = hf.WavLMConfig(**WAVLM, num_buckets=16, max_bucket_distance=8, do_stable_layer_norm=stable)
    model = drawn(hf.WavLMModel(config))
    samples, mask = torch.randn(2, 100), torch.ones(2, 100, dtype=torch.long)
    mask[0, 60:] = 0
    found, expected = assert_same_weights(model, samples, attention_mask=mask)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)


def test_a_layer_alone() -> None:
    """It would hand its biases to a layer that expects those of the pairs, or get these."""
    layer = made("wavlm").layers[1]
    with refused(
        UnsupportedError,
        "model: relattn can change no attention of WavLMEncoderLayer (WavLMAttention shares its bias with the other "
        "layers of a ModuleList; patch that, or the model); it is as it was",
    ):
        relattn.hf.patch(layer)
    assert layer.attention.num_heads == HEADS


BIAS_WITHOUT_GRADIENT = (
    "position_bias: got a tensor with a gradient in a layer that runs without, as under checkpointing with "
    "use_reentrant=True, whose backward pass would never end, as in the original; call "
    "gradient_checkpointing_enable({'use_reentrant': False}), or detach position_bias"
)


def test_a_later_layer_without_gradients() -> None:
    """Whose caller has checkpointed nothing."""
    model, features = made("wavlm"), torch.randn(1, 5, 16)
    relattn.hf.patch(model)
    first, second = (layer.attention for layer in model.layers)
    bias = first(features)[2]
    with torch.no_grad():
        with refused(UnsupportedError, BIAS_WITHOUT_GRADIENT):
            second(features, position_bias=bias)
        second(features, position_bias=bias.detach())


def test_checkpoints_that_would_never_end() -> None:
    """The backward pass of a layer would begin that of the layer above again, which begins that of this layer."""
    model, sound = hf.WavLMModel(hf.WavLMConfig(**WAVLM, mask_time_prob=0.0)).train(), torch.randn(1, 80)
    relattn.hf.patch(model)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with refused(UnsupportedError, BIAS_WITHOUT_GRADIENT):
        model(sound)
    with torch.no_grad():
        model(sound)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(sound).last_hidden_state.sum().backward()
    assert model.encoder.layers[0].attention.rel_attn_embed.weight.grad.any()
