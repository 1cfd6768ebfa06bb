"""Composing: only what a voice can sing, after the prompt as it was given."""

from functools import partial

import mido
import numpy as np
import pytest
import torch

from relattn_lab.checkpoint import DataCard, load_checkpoint, save_checkpoint
from relattn_lab.compose import Sampling, compose, continue_tokens
from relattn_lab.medium import Request
from relattn_lab.support.progress import Silent
from relattn_lab.voices.medium import allowed_tokens
from relattn_lab.voices.pieces import SILENCE, Piece
from relattn_lab.voices.sources import load_music
from relattn_lab.voices.vocabulary import Vocabulary
from tests.lab.small import Recorder, model, write_data
from tests.lab.voices.synthetic import random_pieces

NOTHING = np.array([], dtype=np.int64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made(tmp_path_factory.mktemp("compose"))


def made(folder, encoding="relative", depth=1):
    data = write_data(folder / "small.json")
    vocabulary = Vocabulary.covering(load_music(str(data)).pieces)
    asked = model(encoding, vocab_size=vocabulary.size, depth=depth)
    save_checkpoint(folder / "model", asked, card(data, vocabulary.low, vocabulary.high), "a card")
    return folder


def run(folder, out, prompt_steps=4, steps=10, progress=None, **sampling):
    request = Request(prompt_steps, from_nothing=prompt_steps is None, steps=steps)
    return compose(folder / "model", out, request, Sampling(**sampling), progress or Silent())


def card(data, low, high):
    return DataCard(str(data), "voices", {"low": low, "high": high})


def steps_of(folder, written):
    return load_checkpoint(folder / "model")[1].vocabulary.decode(written.tokens)


def test_it_continues_a_held_out_piece(folder, tmp_path):
    recorder = Recorder()
    written = run(folder, tmp_path, prompt_steps=6, progress=recorder)
    assert (written.steps, written.given, written.unit) == (16, 6, "steps")
    openings = [piece.steps[:6].tolist() for piece in load_music(str(folder / "small.json")).test]
    assert steps_of(folder, written)[:6].tolist() in openings
    assert ("composing", 40) in recorder.begun
    assert written.files["midi"].suffix == ".mid"
    assert written.files["picture"].read_bytes().startswith(b"\x89PNG")
    assert len(mido.MidiFile(written.files["midi"]).tracks) == 5


def test_it_starts_from_nothing(folder, tmp_path):
    written = run(folder, tmp_path, prompt_steps=None, steps=5)
    assert (written.steps, written.given) == (5, 0)
    assert steps_of(folder, written).shape == (5, 4)
    assert written.files["midi"].name == "from-nothing-relative-seed0.mid"


def test_on_pitch_and_time_it_composes_what_the_rolling_window_says(tmp_path):
    """The likeliest token each time, by one pass over all tokens so far, whose queries see as far as the cache does."""
    folder = made(tmp_path, "relative+pitch+time", depth=2)
    written = run(folder, tmp_path / "out", prompt_steps=6, steps=12, temperature=1e-6, top_p=1.0)
    asked, known = load_checkpoint(folder / "model")
    allowed = allowed_tokens(load_music(str(folder / "small.json")).train, known.vocabulary)
    tokens, given = [0, *written.tokens.tolist()], 24
    assert written.files["midi"].name.endswith("-relative+pitch+time-seed0.mid")
    assert len(tokens) == 1 + 4 * 18 > 4 * asked.config.length
    with torch.no_grad():
        for block in asked.blocks:
            forward = block.attention.forward
            window = (asked.config.length - 1, 0)
            block.attention.forward = partial(forward, window=window)
        logits = asked(torch.tensor([tokens[:-1]])).logits[0]
    for place in range(given, len(tokens) - 1):
        scores = logits[place].masked_fill(~torch.from_numpy(allowed[place % 4]), -torch.inf)
        assert scores.argmax() == tokens[place + 1], place


def test_the_seed_fixes_every_note(folder, tmp_path):
    first, again, other = (run(folder, tmp_path, seed=seed, prompt_steps=None).tokens for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_almost_no_temperature_is_greedy():
    asked, vocabulary = model(), Vocabulary(40, 57)
    allowed = np.ones((4, 20), dtype=bool)
    allowed[:, vocabulary.begin] = False
    drawn = [
        continue_tokens(asked, NOTHING, allowed, 24, Sampling(temperature=1e-4, top_p=1.0, seed=seed), Silent())
        for seed in (0, 1)
    ]
    np.testing.assert_array_equal(*drawn)


def test_after_the_opening_a_model_is_given_one_token_at_a_time(monkeypatch):
    # whatever its configuration says: training may have switched the cache off there
    asked, lengths = model(), []
    asked.config.use_cache = asked.generation_config.use_cache = False
    forward = asked.forward

    def heard(input_ids, **rest):
        lengths.append(input_ids.shape[1])
        return forward(input_ids, **rest)

    monkeypatch.setattr(asked, "forward", heard)
    continue_tokens(asked, np.arange(5, 12), np.ones((4, 20), dtype=bool), 6, Sampling(), Silent())
    assert lengths == [8, 1, 1, 1, 1, 1]


def test_every_voice_keeps_to_what_it_can_sing():
    # at a high temperature everything that is allowed comes up, and nothing else
    asked, vocabulary = model(), Vocabulary(40, 57)
    allowed = np.zeros((4, 20), dtype=bool)
    for voice in range(4):
        allowed[voice, 2 + 4 * voice : 5 + 4 * voice] = True
    allowed[3, vocabulary.silence] = True
    steps = vocabulary.decode(continue_tokens(asked, NOTHING, allowed, 240, Sampling(100.0, 1.0, 0), Silent()))
    for voice in range(4):
        pitches = {40 + 4 * voice + place for place in range(3)} | ({SILENCE} if voice == 3 else set())
        assert set(steps[:, voice].tolist()) == pitches


def test_what_a_voice_can_sing():
    pieces = [Piece("a", np.array([[70, 60, 50, -1], [72, 60, 50, 41]])), Piece("b", np.array([[71, 62, 50, 43]]))]
    vocabulary = Vocabulary(40, 75)
    allowed = allowed_tokens(pieces, vocabulary)
    spoken = [[vocabulary.low + token - 2 for token in np.flatnonzero(row)] for row in allowed]
    assert spoken == [[70, 71, 72], [60, 61, 62], [50], [vocabulary.low - 1, 41, 42, 43]]
    assert not allowed_tokens(random_pieces(0, [30], silence=0.0), Vocabulary(0, 127))[:, :2].any()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"temperature": 0.0},
            "temperature: got 0; expected 1e-06 to 1e+06; 1e-06 takes the likeliest token, 1e+06 any",
        ),
        (
            {"temperature": float("nan")},
            "temperature: got nan; expected 1e-06 to 1e+06; 1e-06 takes the likeliest token, 1e+06 any",
        ),
        ({"top_p": 0.0}, "top_p: got 0; expected a probability above 0, at most 1"),
        ({"top_p": 1.5}, "top_p: got 1.5; expected a probability above 0, at most 1"),
        ({"seed": -1}, "seed: got -1; expected a number from 0 up to 2**32 - 1"),
        ({"steps": 0}, "steps: got 0; expected 1 to 2**31 - 1"),
        ({"prompt_steps": 0}, "prompt_steps: got 0; expected at least 1; to start without a prompt use --from-nothing"),
        ({"prompt_steps": 900}, "prompt_steps: got 900; expected at most 40, the steps of the longest held-out piece"),
    ],
)
def test_numbers_out_of_range(folder, tmp_path, changes, said):
    with pytest.raises(ValueError) as caught:
        run(folder, tmp_path / "out", **changes)
    assert str(caught.value) == said
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_folder(folder, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(FileExistsError, match=r"out: got .*, which is a file; expected a folder; choose another --out"):
        run(folder, tmp_path / "out")


@pytest.mark.parametrize(("low", "high"), [(1, 0), (0, -1)])
def test_data_that_have_other_pitches_now(folder, tmp_path, low, high):
    data = folder / "small.json"
    heard = Vocabulary.covering(load_music(str(data)).pieces)
    other = card(data, heard.low + low, heard.high + high)
    save_checkpoint(tmp_path / "model", model(vocab_size=other.vocabulary.size), other, "a card")
    with pytest.raises(ValueError) as caught:
        run(tmp_path, tmp_path / "out", prompt_steps=None)
    assert str(caught.value) == (
        f"data: got {data}, which now holds the pitches {heard.low}..{heard.high}; expected "
        f"{heard.low + low}..{heard.high + high}, which the model was trained on; bring the former data back, "
        "or train it anew"
    )
    assert not (tmp_path / "out").exists()


def test_data_that_are_gone(folder, tmp_path):
    save_checkpoint(tmp_path / "model", model(), card(tmp_path / "gone.json", 40, 57), "a card")
    with pytest.raises(FileNotFoundError, match=r"data: .*gone\.json"):
        run(tmp_path, tmp_path / "out")
