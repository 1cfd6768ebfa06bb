"""ProphetNet's generation, its decoder alone, and the weights of its predicting streams."""

from typing import Any

import pytest
import torch
import transformers as hf

import relattn.hf
from relattn import UnsupportedError
from tests import seeds
from tests.bad_input.refusal import refused
from tests.peers.cases import made
from tests.peers.cases.case import drawn, padding
from tests.peers.cases.prophetnet import PROPHETNET


@pytest.mark.parametrize(
    "how", [{}, {"use_cache": False}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=lambda how: str(how)
)
def test_generation(how: dict[str, Any]) -> None:
    """With a static cache the original fails."""
    model = drawn(hf.ProphetNetForConditionalGeneration(hf.ProphetNetConfig(**PROPHETNET, max_position_embeddings=32)))
    tokens, found = torch.randint(3, 40, (2, 9)), []
    for patch in (False, True):
        if patch:
            relattn.hf.patch(model)
        seeds.start_torch(3)
        settings = {"max_new_tokens": 8, "do_sample": False, **how}
        found.append(model.generate(tokens, attention_mask=padding(9), **settings))
    assert torch.equal(*found)
    assert found[0].shape[1] > 1


def test_steps_through_the_cache() -> None:
    """All streams, one token after the other: in the original, too, later streams then see keys they did not before."""
    model = drawn(hf.ProphetNetDecoder(hf.ProphetNetConfig(**PROPHETNET, ngram=3, max_position_embeddings=32)))
    tokens, memory = torch.randint(3, 40, (2, 12)), torch.randn(2, 5, 16)

    def steps() -> torch.Tensor:
        past, found = None, []
        for piece in (tokens[:, :4], *tokens[:, 4:].split(1, dim=1)):
            output = model(piece, encoder_hidden_states=memory, past_key_values=past, use_cache=True)
            past = output.past_key_values
            found += [output.last_hidden_state, output.last_hidden_state_ngram]
        return torch.cat(found, dim=1)

    with torch.no_grad():
        expected = steps()
        with relattn.hf.patched(model):
            found = steps()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_decoder_alone_with_padding(length: int) -> None:
    """Shorter than its streams look ahead, too; with the weights of all streams."""
    config = hf.ProphetNetConfig(**PROPHETNET, ngram=4, max_position_embeddings=32, add_cross_attention=False)
    model = drawn(hf.ProphetNetDecoder(config))
    tokens, mask = torch.randint(3, 40, (2, length)), torch.ones(2, length, dtype=torch.long)
    mask[0, 1:] = 0
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask, output_attentions=True)
        with relattn.hf.patched(model):
            found = model(tokens, attention_mask=mask, output_attentions=True)
            assert model(tokens).attentions is None
    for name in ("last_hidden_state", "last_hidden_state_ngram"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
    for name in ("attentions", "ngram_attentions"):
        for ours, theirs in zip(found[name], expected[name], strict=True):
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_layer_alone() -> None:
    """It would get its decoder's buckets and masks of all pairs."""
    layer = made("prophetnet").decoder.layers[0].self_attn
    with refused(
        UnsupportedError,
        "model: relattn can change no attention of ProphetNetNgramSelfAttention (ProphetNetNgramSelfAttention shares "
        "its bias with the other layers of a ProphetNetDecoder; patch that, or the model); it is as it was",
    ):
        relattn.hf.patch(layer)


def test_the_original_s_predicting_streams_read_the_future() -> None:
    """transformers 5.23: their relative logits come from another token, which may be a later one; ours do as well.

    The main stream is causal, and so is every stream one token after the other.
    """
    model = drawn(hf.ProphetNetDecoder(hf.ProphetNetConfig(**PROPHETNET, max_position_embeddings=32)))
    tokens = torch.randint(3, 39, (1, 9))
    other = tokens.clone()
    other[:, -1] += 1
    with torch.no_grad():
        for patch in (False, True):
            if patch:
                relattn.hf.patch(model)
            one, two = model(tokens), model(other)
            assert torch.equal(one.last_hidden_state[:, :-1], two.last_hidden_state[:, :-1])
            streams = (x.last_hidden_state_ngram.unflatten(1, (2, 9))[:, :, :-1] for x in (one, two))
            assert not torch.equal(*streams)
