"""write_midi, read back with mido."""

import os

import mido
import numpy as np
import pytest

from relattn.errors import ShapeError
from relattn_lab.voices.held import held_notes
from relattn_lab.voices.key import MAJOR_KEYS, MINOR_KEYS, key_of
from relattn_lab.voices.midi import write_midi
from tests import seeds
from tests.lab.voices.synthetic import random_steps


def read(path) -> tuple[np.ndarray, int]:
    """(the steps that the file sounds, how many notes it strikes); every message is accounted for."""
    song = mido.MidiFile(path)
    ticks = song.ticks_per_beat // 4
    length = sum(message.time for message in song.tracks[0]) // ticks
    steps, struck = np.full((length, len(song.tracks) - 1), -1), 0
    for voice, track in enumerate(song.tracks[1:]):
        now, sounding = 0, None
        for message in track:
            assert message.time % ticks == 0
            now += message.time // ticks
            if message.type == "note_on":
                assert (message.channel, sounding) == (voice, None)
                sounding, struck = (now, message.note), struck + 1
            elif message.type == "note_off":
                assert (message.channel, message.note) == (voice, sounding[1])
                assert now > sounding[0]
                steps[sounding[0] : now, voice], sounding = message.note, None
        assert (now, sounding) == (length, None)
    return steps, struck


def test_the_notes_come_back(tmp_path):
    steps = random_steps(seeds.generator(0), 150)
    steps[-3:, 1] = -1
    write_midi(tmp_path / "a.mid", steps)
    back, struck = read(tmp_path / "a.mid")
    assert np.array_equal(back, steps)
    assert struck == sum(len(held_notes(steps, voice)) for voice in range(4)) < steps.size / 2


def test_equal_pitches_in_a_row_are_one_note():
    steps = np.array([[60, -1, 50, 40], [60, -1, 52, 40], [62, 55, 50, -1], [60, 55, 50, 40]])
    notes = [[tuple(note) for note in held_notes(steps, voice)] for voice in range(4)]
    assert notes == [
        [(0, 2, 60), (2, 3, 62), (3, 4, 60)],
        [(2, 4, 55)],
        [(0, 1, 50), (1, 2, 52), (2, 4, 50)],
        [(0, 2, 40), (3, 4, 40)],
    ]


def test_tracks_tempo_and_sound(tmp_path):
    write_midi(tmp_path / "a.mid", np.full((32, 4), 60), beats_per_minute=60)
    song = mido.MidiFile(tmp_path / "a.mid")
    assert song.type == 1
    assert [track.name for track in song.tracks[1:]] == ["Soprano", "Alto", "Tenor", "Bass"]
    assert song.length == pytest.approx(8.0)  # 32 steps are 8 beats, a second each
    programs = [message for track in song.tracks for message in track if message.type == "program_change"]
    assert [(message.channel, message.program) for message in programs] == [(voice, 52) for voice in range(4)]
    write_midi(tmp_path / "a.mid", np.full((32, 4), 60), beats_per_minute=120)
    assert mido.MidiFile(tmp_path / "a.mid").length == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("upbeat", "bar_steps", "signatures"),
    [
        (0, 16, [(0, 4, 4)]),
        (4, 16, [(0, 1, 4), (480, 4, 4)]),
        (4, 12, [(0, 1, 4), (480, 3, 4)]),
        (2, 6, [(0, 2, 16), (240, 6, 16)]),
    ],
)
def test_the_metre(tmp_path, upbeat: int, bar_steps: int, signatures: list[tuple[int, int, int]]):
    """After the upbeat; the tracks stay equally long."""
    write_midi(tmp_path / "a.mid", np.full((32, 4), 60), upbeat=upbeat, bar_steps=bar_steps)
    tracks = mido.MidiFile(tmp_path / "a.mid").tracks
    now, found = 0, []
    for message in tracks[0]:
        now += message.time
        if message.type == "time_signature":
            found.append((now, message.numerator, message.denominator))
    assert found == signatures
    assert {sum(message.time for message in track) for track in tracks} == {32 * 120}


C_MAJOR, A_MINOR = [60, 62, 64, 65, 67, 69, 71, 72, 67, 64, 60], [57, 59, 60, 62, 64, 65, 68, 69, 64, 60, 57]


@pytest.mark.parametrize("tonic", range(12))
@pytest.mark.parametrize(("scale", "names", "root"), [(C_MAJOR, MAJOR_KEYS, 0), (A_MINOR, MINOR_KEYS, 9)])
def test_the_key_is_that_of_the_scale(tmp_path, scale: list[int], names: tuple[str, ...], root: int, tonic: int):
    steps = np.tile(np.array(scale)[:, None] + tonic - root, (1, 4))
    assert key_of(steps) == names[tonic]
    write_midi(tmp_path / "a.mid", steps)
    (key,) = [message.key for message in mido.MidiFile(tmp_path / "a.mid").tracks[0] if message.type == "key_signature"]
    assert key == names[tonic]


def test_silence_has_a_length_too(tmp_path):
    steps = np.full((8, 4), -1)
    write_midi(tmp_path / "a.mid", steps)
    assert np.array_equal(read(tmp_path / "a.mid")[0], steps)


def test_bad_input_leaves_no_file(tmp_path):
    path = tmp_path / "a.mid"
    with pytest.raises(ShapeError, match=r"got shape \[2, 3\]; expected \[steps, 4\] with at least one step"):
        write_midi(path, np.full((2, 3), 60))
    for tempo in (0, -60, 3.9, 1001, float("nan")):
        with pytest.raises(ValueError, match=rf"beats_per_minute: got {tempo}; expected 4\.\.1000"):
            write_midi(path, np.full((2, 4), 60), beats_per_minute=tempo)
    with pytest.raises(FileNotFoundError, match=r"path: got .*, whose folder does not exist"):
        write_midi(tmp_path / "nowhere" / "a.mid", np.full((2, 4), 60))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("tempo", [4, 1000])
def test_the_tempos_at_the_ends(tmp_path, tempo):
    write_midi(tmp_path / "a.mid", np.full((4, 4), 60), beats_per_minute=tempo)
    assert mido.MidiFile(tmp_path / "a.mid").length == pytest.approx(60 / tempo, rel=1e-5)
