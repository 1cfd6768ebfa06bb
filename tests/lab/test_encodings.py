"""What the lab adds to the catalogue."""

import pytest
import torch

import relattn
from relattn.catalogue import CATALOGUE, Layer
from relattn.lab.config import LabConfig
from relattn.lab.encodings import ENCODINGS, build_encoding, lab_options

LAYER = Layer(num_heads=2, head_dim=8, length=100, causal=True)


def of_the_lab(name, layer=LAYER):
    return build_encoding(name, layer, lab_options(name, layer.length))


def test_every_name_is_the_catalogue_s():
    assert set(CATALOGUE) - set(ENCODINGS) == {"key-query", "disentangled"}
    assert len(set(ENCODINGS)) == len(ENCODINGS)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if CATALOGUE[name].kind])
def test_each_layer_gets_a_module_of_its_own(name):
    assert of_the_lab(name) is not of_the_lab(name)


@pytest.mark.parametrize(("name", "heads"), [("relative", 1), ("relative-heads", 2)])
def test_beyond_the_trained_length_the_edge_row_holds(name, heads):
    query, key = torch.randn(2, 1, 2, 130, 8)
    encoding = of_the_lab(name)
    found = relattn.attention_weights(query, key, key, is_causal=True, encoding=encoding)
    longer = relattn.RelativeEmbedding(8, 130, num_heads=heads if heads > 1 else None, causal=True)
    with torch.no_grad():
        rows = encoding.relative_keys
        longer.relative_keys.copy_(torch.cat([rows[:, :1].expand(-1, 30, -1), rows], dim=1))
    expected = relattn.attention_weights(query, key, key, is_causal=True, encoding=longer)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["shaw", "shaw-keys"])
def test_shaw_covers_a_bar_of_the_past_or_the_window_if_that_is_shorter(name):
    assert of_the_lab(name).relative_keys.shape == (1, 65, 8)
    assert of_the_lab(name, Layer(2, 8, 16, causal=True)).relative_keys.shape == (1, 16, 8)


def test_a_configuration_says_what_the_lab_adds_and_options_go_over_it():
    assert LabConfig(encoding="relative").encoding_options == {"beyond": "clamp"}
    assert LabConfig(encoding="shaw", length=16).encoding_options == {"max_distance": [15, 0]}
    asked = LabConfig(encoding="shaw", encoding_options={"max_distance": [3, 2]})
    assert asked.encoding_options == {"max_distance": [3, 2]}
    assert build_encoding("shaw", LAYER, asked.encoding_options).relative_keys.shape == (1, 6, 8)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError) as caught:
        build_encoding("Rope", LAYER, {})
    assert str(caught.value) == (
        "encoding: got 'Rope'; expected one of 'relative-heads', 'relative', 'shaw', 'shaw-keys', 'transformer-xl', "
        "'t5', 'alibi', 'kerple', 'kerple-power', 'sandwich', 'rope', 'none', 'sinusoid'"
    )
