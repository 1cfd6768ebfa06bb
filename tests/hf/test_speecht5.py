"""SpeechT5 as it transcribes: from samples, through its caches."""

import pytest
import torch
import transformers as hf

import relattn.hf
from relattn import UnsupportedError
from tests import seeds
from tests.bad_input.refusal import refused
from tests.peers.cases import made
from tests.peers.cases.case import drawn
from tests.peers.cases.speecht5 import SPEECHT5

CONVOLUTIONS = {"conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (8,), "num_feat_extract_layers": 1,
                "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip


@pytest.mark.parametrize(
    "how", [{}, {"use_cache": False}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=lambda how: str(how)
)
def test_generation(how: dict) -> None:
    """One of two recordings is shorter."""
    config = hf.SpeechT5Config(**SPEECHT5, **CONVOLUTIONS, encoder_max_relative_position=4, max_length=20)
    model = drawn(hf.SpeechT5ForSpeechToText(config))
    samples, mask = torch.randn(2, 100), torch.ones(2, 100, dtype=torch.long)
    mask[0, 60:] = 0
    found = []
    for patch in (False, True):
        if patch:
            relattn.hf.patch(model)
        seeds.start_torch(3)
        found.append(model.generate(samples, attention_mask=mask, max_new_tokens=8, **{"do_sample": False, **how}))
    assert torch.equal(*found)
    assert found[0].shape[1] > 1


def test_decoder_masks_of_pairs() -> None:
    """A padding mask of the decoder's own tokens, and a mask of pairs that the caller wrote."""
    model = made("speecht5")
    states = {"input_values": torch.randn(2, 9, 16), "decoder_input_values": torch.randn(2, 6, 16)}
    padding = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    pairs = torch.ones(2, 1, 6, 6).tril().log().clamp(min=torch.finfo(torch.float32).min)
    pairs[:, :, :, 2] = torch.finfo(torch.float32).min
    pairs[:, :, 2, 2] = 0.0
    with torch.no_grad():
        for mask in (padding, pairs):
            expected = model(**states, decoder_attention_mask=mask)[0]
            with relattn.hf.patched(model):
                found = model(**states, decoder_attention_mask=mask)[0]
            real = torch.ones(2, 6, dtype=torch.bool) if mask.dim() == 4 else mask.bool()
            torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)


def test_a_layer_alone() -> None:
    """It would get its encoder's rows of all pairs."""
    layer = made("speecht5").encoder.wrapped_encoder.layers[0]
    with refused(
        UnsupportedError,
        "model: relattn can change no attention of SpeechT5EncoderLayer (SpeechT5Attention shares its bias with the "
        "other layers of a SpeechT5PreTrainedModel; patch that, or the model); it is as it was",
    ):
        relattn.hf.patch(layer)
