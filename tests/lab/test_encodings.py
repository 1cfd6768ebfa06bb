"""The registry of encodings."""

import pytest
import torch

import relattn
from relattn.lab.encodings import ENCODINGS, Shape, build_encoding

SHAPE = Shape(num_heads=2, head_dim=8, length=100)
CLASSES = {
    "relative": relattn.RelativeEmbedding,
    "shaw": relattn.ShawEmbedding,
    "transformer-xl": relattn.TransformerXLEmbedding,
    "t5": relattn.T5Bias,
    "alibi": relattn.AlibiBias,
    "rope": relattn.RotaryEmbedding,
    "none": type(None),
    "sinusoid": type(None),
}


def test_every_name_and_no_other():
    assert list(CLASSES) == list(ENCODINGS)
    for name, kind in CLASSES.items():
        assert type(build_encoding(name, SHAPE, {})) is kind
        assert ENCODINGS[name].name == name
        assert ENCODINGS[name].source


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if kind is not type(None)])
def test_each_layer_gets_a_module_of_its_own(name):
    assert build_encoding(name, SHAPE, {}) is not build_encoding(name, SHAPE, {})


def test_beyond_the_trained_length_the_edge_row_holds():
    query, key = torch.randn(1, 2, 130, 8), torch.randn(1, 2, 130, 8)
    encoding = build_encoding("relative", SHAPE, {})
    found = relattn.attention_weights(query, key, key, is_causal=True, encoding=encoding)
    longer = relattn.RelativeEmbedding(8, 130, num_heads=2, causal=True)
    with torch.no_grad():
        rows = encoding.relative_keys
        longer.relative_keys.copy_(torch.cat([rows[:, :1].expand(-1, 30, -1), rows], dim=1))
    expected = relattn.attention_weights(query, key, key, is_causal=True, encoding=longer)
    torch.testing.assert_close(found, expected)


def test_shaw_covers_a_bar_or_the_window_if_that_is_shorter():
    assert build_encoding("shaw", SHAPE, {}).relative_keys.shape == (1, 65, 8)
    assert build_encoding("shaw", Shape(2, 8, 16), {}).relative_keys.shape == (1, 16, 8)


def test_shaw_takes_a_pair_that_was_saved_as_json():
    assert build_encoding("shaw", SHAPE, {"max_distance": [3, 2]}).relative_keys.shape == (1, 6, 8)


def test_t5_spends_all_buckets_on_the_past():
    assert not build_encoding("t5", SHAPE, {}).bidirectional


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError) as caught:
        build_encoding("Rope", SHAPE, {})
    assert str(caught.value) == (
        "encoding: got 'Rope', expected one of relative, shaw, transformer-xl, t5, alibi, rope, none, sinusoid"
    )


def test_options_go_over_the_defaults():
    assert build_encoding("relative", SHAPE, {"max_length": 10}).max_length == 10
    assert build_encoding("t5", SHAPE, {"num_buckets": 8}).num_buckets == 8
