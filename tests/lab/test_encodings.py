"""What the lab adds to the catalogue."""

import pytest
import torch

import relattn
from relattn.encodings.catalogue import CATALOGUE, Layer
from relattn_lab.config import LabConfig
from relattn_lab.encodings import ENCODINGS, build_encoding, lab_options
from relattn_lab.settings import Settings
from tests import seeds

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


def test_pitch_and_time_add_a_row_each():
    """S_ij = scale * q_i . (k_j + E[j - i] + T[t_j - t_i] + P[p_j - p_i]), whatever the places are."""
    seeds.start_torch(0)
    length, encoding = 40, of_the_lab("relative+pitch+time", Layer(2, 8, 32, causal=True)).double()
    query, key = torch.randn(2, 1, 2, length, 8).double()
    time, pitch = torch.arange(length) // 3 * 2, torch.randint(300, (length,))
    on_axes = {"time": time, "pitch": pitch}
    places = {"query_position": on_axes, "key_position": on_axes}
    found = relattn.attention_weights(query, key, key, is_causal=True, encoding=encoding, **places)
    tables = {name: table[0] for name, table in encoding.named_parameters()}
    by_offset, by_time, by_pitch = (tables[name] for name in sorted(tables))
    assert [len(rows) for rows in (by_offset, by_time, by_pitch)] == [32, 9, 255]
    scores = torch.full((2, length, length), -torch.inf).double()
    for i in range(length):
        for j in range(i + 1):
            interval = int(pitch[j] - pitch[i])
            row = by_offset[max(j - i, -31) + 31] + by_time[max(int(time[j] - time[i]), -8) + 8]
            row = row + (by_pitch[interval + 127] if abs(interval) <= 127 else 0.0)
            scores[:, i, j] = ((key[0, :, j] + row) * query[0, :, i]).sum(-1) / 8**0.5
    torch.testing.assert_close(found[0], scores.softmax(-1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("source", ["chorales", "songs.json", "songs/OLD.JSON"])
def test_four_voices_may_be_compared_on_pitch_and_time(source):
    assert Settings(data=source, encodings=("rope", "relative+pitch+time")).data == source


@pytest.mark.parametrize("source", ["songs", "words.txt", "chorales.txt", "chorales/"])
def test_other_data_refuse_it(source):
    with pytest.raises(ValueError) as caught:
        Settings(data=source, encodings=("rope", "relative+pitch+time"))
    assert str(caught.value) == (
        f"encodings: got 'relative+pitch+time' for {source}, whose tokens have no place on 'time' and 'pitch'; "
        'expected music in four voices for it, "chorales" or a .json file; leave it out, or name such data'
    )


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
        "encoding: got 'Rope'; expected one of 'relative-heads', 'relative', 'relative+pitch+time', 'shaw', "
        "'shaw-keys', 'transformer-xl', 't5', 'alibi', 'kerple', 'kerple-power', 'sandwich', 'rope', "
        "'none', 'sinusoid', 'sinusoid+voice', 'key-query'"
    )
