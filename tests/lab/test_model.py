"""The transformer: what it predicts must not depend on how it is asked (cached, padded, saved, in beams)."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from relattn import ExplicitPositions, GridPositions
from relattn.errors import ShapeError
from relattn.positions.offsets import sinusoids
from relattn_lab.cache import LabCache
from relattn_lab.config import LabConfig
from relattn_lab.encodings import ENCODINGS
from relattn_lab.model import LabModel
from tests import seeds
from tests.lab.small import config, model, tokens

EVERY = pytest.mark.parametrize("encoding", list(ENCODINGS))
# Two orders of the same float32 sums of at most a few hundred terms of size about 1, through two blocks.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@EVERY
def test_in_chunks_through_the_cache_as_in_one_pass(encoding):
    asked, ids = model(encoding), tokens(2, 40)
    cache, parts, start = LabCache(asked.config.depth), [], 0
    for size in (1, 7, 16, 1, 15):
        parts.append(asked(ids[:, start : start + size], past_key_values=cache).logits)
        start += size
    torch.testing.assert_close(torch.cat(parts, 1), asked(ids).logits, **CLOSE)
    assert cache.get_seq_length() == 40


@pytest.mark.one_in(4)
@pytest.mark.parametrize("max_length", [None, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_a_cache_keeps_time_without_a_list_unless_rows_are_masked(masked, max_length):
    asked, ids = model("relative+pitch+time", depth=2), tokens(2, 40)
    cache, other, parts = LabCache(asked.config.depth, max_length), LabCache(asked.config.depth, max_length), []
    for start, size in ((0, 3), (3, 1), (4, 1), (5, 20), (25, 1), (26, 1), (27, 13)):
        mask = torch.ones(2, start + size, dtype=torch.long) if masked else None
        part = ids[:, start : start + size]
        with torch.no_grad():
            parts.append(asked(part, past_key_values=cache, attention_mask=mask).logits)
    with torch.no_grad():
        singly = [asked(ids[:, n : n + 1], past_key_values=other).logits for n in range(40)]
    torch.testing.assert_close(torch.cat(parts, 1), torch.cat(singly, 1), **CLOSE)
    for kept, kind in ((cache, ExplicitPositions if masked else GridPositions), (other, GridPositions)):
        assert type(kept.kv(1).beside["time"]) is kind
        assert type(kept.kv(1).beside["pitch"]) is ExplicitPositions


@pytest.mark.parametrize("operand", [0, 1, 2])
def test_the_order_the_time_and_the_pitch_all_count(operand):
    asked, ids = model("relative+pitch+time"), tokens(2, 24)
    with torch.no_grad():
        before = asked(ids).logits
        for block in asked.blocks:
            for table in block.attention.encoding.encodings[operand].parameters():
                table.zero_()
        assert (asked(ids).logits - before).abs().amax(dim=(0, 2))[1:].min() > 1e-4


# transformer-xl keeps rows of its own in the cache, which beams must leave alone; rope keeps rotated keys
BEAMS = [
    (encoding, how)
    for encoding in ("transformer-xl", "rope")
    for how in ({"num_beams": 3}, {"num_return_sequences": 2, "num_beams": 2})
]


@pytest.mark.one_in(12)
@pytest.mark.parametrize(("encoding", "how"), [*((encoding, {}) for encoding in ENCODINGS), *BEAMS])
def test_generate_with_and_without_the_cache(encoding, how):
    asked, ids = model(encoding), tokens(2, 6)
    with_cache, without = (
        asked.generate(ids, max_new_tokens=10, do_sample=False, use_cache=use, pad_token_id=0, **how)
        for use in (True, False)
    )
    assert with_cache.shape[1] == 16
    assert torch.equal(with_cache, without)


@EVERY
def test_left_padded_as_unpadded(encoding):
    asked, long, short = model(encoding), tokens(1, 20), tokens(1, 12, seed=2)
    padded = torch.cat([torch.zeros(1, 8, dtype=torch.long), short], 1)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, :8] = 0
    logits = asked(torch.cat([long, padded]), attention_mask=mask).logits
    torch.testing.assert_close(logits[:1], asked(long).logits, **CLOSE)
    torch.testing.assert_close(logits[1:, 8:], asked(short).logits, **CLOSE)


@pytest.mark.parametrize("padding", [1, 2, 3, 5])
def test_time_counts_no_padding(padding):
    asked, long, short = model("relative+pitch+time", depth=2), tokens(1, 20), tokens(1, 20 - padding, seed=2)
    ids = torch.cat([long, torch.cat([torch.zeros(1, padding, dtype=torch.long), short], 1)])
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, :padding] = 0
    cache, parts = LabCache(asked.config.depth), []
    for start, stop in ((0, 7), (7, 8), (8, 20)):
        masked = {"attention_mask": mask[:, :stop], "past_key_values": cache}
        parts.append(asked(ids[:, start:stop], **masked).logits)
    for logits in (asked(ids, attention_mask=mask).logits, torch.cat(parts, 1)):
        torch.testing.assert_close(logits[:1], asked(long).logits, **CLOSE)
        torch.testing.assert_close(logits[1:, padding:], asked(short).logits, **CLOSE)


@pytest.mark.one_in(4)
@EVERY
def test_left_padded_prompts_are_continued_as_unpadded_ones(encoding):
    asked, short = model(encoding), tokens(1, 5)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), short], 1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    continued = asked.generate(padded, attention_mask=mask, **options)
    assert torch.equal(continued[:, 3:], asked.generate(short, **options))


@EVERY
def test_nothing_leaks_from_the_future(encoding):
    asked, ids = model(encoding), tokens(1, 24)
    changed = ids.clone()
    changed[:, 10:] = 21 - changed[:, 10:].clamp(min=2)
    before, after = asked(ids).logits, asked(changed).logits
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=0, atol=0)
    assert (before[:, 10:] != after[:, 10:]).any()


@EVERY
def test_positions_count_unless_there_are_none(encoding):
    # with one block and no positions the last token sees a set: the order of those before it is nothing to it
    asked, ids = model(encoding, depth=1), tokens(1, 12)
    turned = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], 1)
    difference = (asked(ids).logits[:, -1] - asked(turned).logits[:, -1]).abs().max()
    if encoding == "none":
        assert difference < 1e-5
    else:
        assert difference > 1e-3


def test_the_absolute_baseline_adds_the_published_sinusoids(monkeypatch):
    asked, ids = model("sinusoid"), tokens(1, 9)
    logits = asked(ids).logits
    added = torch.from_numpy(sinusoids(np.arange(9), asked.config.width)).float()[None]
    monkeypatch.setattr(LabModel, "_sinusoids", lambda *arguments: added)
    torch.testing.assert_close(asked(ids).logits, logits, **CLOSE)


@pytest.mark.one_in(4)
@EVERY
def test_saved_and_loaded_it_is_the_same_model(encoding, tmp_path):
    asked, ids = model(encoding), tokens(2, 20)
    asked.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is LabModel
    assert torch.equal(loaded(ids).logits, asked(ids).logits)
    assert AutoConfig.from_pretrained(tmp_path).encoding == encoding


@EVERY
def test_every_parameter_learns_and_stays_finite_beyond_the_trained_length(encoding):
    asked, ids = model(encoding).train(), tokens(2, 64)
    asked(ids, labels=ids).loss.backward()
    for name, parameter in asked.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_options_of_an_encoding_reach_it_and_survive_saving(tmp_path):
    asked = model("shaw", encoding_options={"max_distance": (3, 0), "num_heads": 2})
    assert asked.blocks[0].attention.encoding.relative_keys.shape[:2] == (2, 4)
    asked.save_pretrained(tmp_path)
    assert LabModel.from_pretrained(tmp_path).blocks[0].attention.encoding.relative_keys.shape[:2] == (2, 4)


def test_the_relative_table_has_a_row_for_each_trained_distance_and_head():
    for name, tables in (("relative-heads", 2), ("relative", 1)):
        assert model(name, length=24).blocks[0].attention.encoding.relative_keys.shape == (tables, 24, 8)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_or_own_output_weights(tied, tmp_path):
    asked = model(tie_word_embeddings=tied)
    assert (asked.output.weight is asked.embedding.weight) == tied
    asked.save_pretrained(tmp_path)
    loaded = LabModel.from_pretrained(tmp_path).eval()
    assert (loaded.output.weight is loaded.embedding.weight) == tied
    assert torch.equal(loaded(tokens(1, 5)).logits, asked(tokens(1, 5)).logits)


def test_the_loss_is_the_mean_over_counted_tokens_however_the_labels_come():
    asked, ids = model(), tokens(2, 10)
    labels = ids.clone()
    labels[0, 7:] = -100
    logits = asked(ids).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(asked(ids, labels=labels).loss, expected)
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(asked(ids, shift_labels=shifted).loss, expected)
    counted = (shifted != -100).sum()
    torch.testing.assert_close(asked(ids, shift_labels=shifted, num_items_in_batch=2 * counted).loss, expected / 2)


def test_only_the_asked_logits():
    asked, ids = model(), tokens(2, 10)
    few, all_of_them = asked(ids, logits_to_keep=3).logits, asked(ids).logits
    torch.testing.assert_close(few, all_of_them[:, -3:])  # a product of other shape may round otherwise


def test_before_training_it_is_no_more_than_a_guess():
    # untied, logits start as N(0, 1): E[ln sum exp] = ln(vocabulary) + 1/2, the mean over 500 tokens within 0.2 of it
    asked = model(vocab_size=50, width=64, heads=4, tie_word_embeddings=False)
    ids = torch.randint(50, (8, 64))
    assert abs(asked(ids, labels=ids).loss.item() - math.log(50) - 0.5) < 0.2


def test_sampling_is_fixed_by_the_seed():
    asked, ids = model(), tokens(1, 4)
    drawn = []
    for seed in (0, 0, 1):
        seeds.start_torch(seed)
        drawn.append(asked.generate(ids, max_new_tokens=30, do_sample=True, pad_token_id=0).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_mask_that_forgets_the_cache():
    asked, cache = model(), LabCache(2)
    asked(tokens(2, 5), past_key_values=cache)
    with pytest.raises(
        ShapeError, match=r"attention_mask: got shape \[2, 1\]; expected \[2, 6\] \(batch, 5 cached and 1 given"
    ):
        asked(tokens(2, 1), past_key_values=cache, attention_mask=torch.ones(2, 1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"encoding": "ropes"},
            "encoding: got 'ropes'; expected one of 'relative-heads', 'relative', 'relative+pitch+time', ",
        ),
        ({"width": 15}, "width, heads: got 15 and 2; expected a width that the heads divide"),
        ({"width": 0}, "width: got 0; expected an int of at least 1"),
        ({"depth": -1}, "depth: got -1; expected an int of at least 1"),
        ({"heads": 0}, "heads: got 0; expected an int of at least 1"),
        ({"vocab_size": 0}, "vocab_size: got 0; expected an int of at least 1"),
        ({"length": 0}, "length: got 0; expected an int of at least 1"),
        ({"dropout": 1.0}, "dropout: got 1.0; expected a probability from 0 up to, but not, 1"),
    ],
)
def test_a_configuration_that_cannot_be(changes, said):
    with pytest.raises(ValueError) as caught:
        config(**changes)
    assert said in str(caught.value)


def test_options_that_the_encoding_does_not_have():
    with pytest.raises(
        ValueError, match=r"encoding_options: got \{'slope': 2\}; expected what the encoding 'alibi' takes"
    ):
        LabModel(LabConfig(encoding="alibi", encoding_options={"slope": 2}))
