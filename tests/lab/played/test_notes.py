"""Played music: what is heard in a MIDI file, as events and back."""

import mido
import numpy as np
import pytest

from relattn_lab.played.notes import read_notes, without_overlaps, write_notes
from relattn_lab.played.picture import draw_played
from relattn_lab.played.vocabulary import Events
from tests import seeds
from tests.lab.played.synthetic import off, on, pedal, write_midi

EVENTS = Events()


def heard(tmp_path, *messages, **options):
    return read_notes(write_midi(tmp_path / "song.mid", *messages, **options).read_bytes()).tolist()


def random_notes(seed=0, count=300):
    random = seeds.generator(seed)
    start = np.cumsum(random.integers(0, 300, count) * (random.random(count) < 0.5))
    velocity = 4 * random.integers(0, 32, count) + 2
    notes = np.stack([start, start + random.integers(1, 400, count), random.integers(0, 128, count), velocity], axis=1)
    notes[:, :2] -= notes[:, :2].min()
    return without_overlaps(notes)


def test_notes_are_in_hundredths_of_a_second_from_the_first(tmp_path):
    assert heard(tmp_path, on(60, 500), on(64, 250, 90), off(60, 250), off(64, 104)) == [
        [0, 50, 60, 64],
        [25, 60, 64, 90],
    ]


def test_tempo_counts(tmp_path):
    slower = mido.MetaMessage("set_tempo", tempo=1_000_000)
    assert heard(tmp_path, on(60), slower, off(60, 500)) == [[0, 100, 60, 64]]


def test_velocity_zero_ends_and_what_never_ends_ends_with_the_file(tmp_path):
    assert heard(tmp_path, on(60), on(62), on(60, 100, velocity=0), on(64, 100), off(64, 100)) == [
        [0, 10, 60, 64],
        [0, 30, 62, 64],
        [20, 30, 64, 64],
    ]


def test_the_pedal_holds_its_own_channel(tmp_path):
    # 60 and 67 are let go with the pedal down; 67 lies on another channel; 60 is struck again before the pedal rises
    notes = heard(
        tmp_path, pedal(127), on(60), on(67, channel=1), off(60, 100), off(67, channel=1), on(60, 100), off(60, 100),
        on(72), off(72, 100), pedal(0, 100),
    )  # fmt: skip
    assert notes == [[0, 20, 60, 64], [0, 10, 67, 64], [20, 50, 60, 64], [30, 50, 72, 64]]


def test_a_pedal_that_rises_releases_its_own_channel(tmp_path):
    assert heard(
        tmp_path, pedal(127), pedal(127, channel=1), on(60), on(67, channel=1), off(60, 100), off(67, channel=1),
        pedal(0, 100), pedal(0, 100, channel=1),
    ) == [[0, 20, 60, 64], [0, 30, 67, 64]]  # fmt: skip


def test_a_pedal_half_down_is_up(tmp_path):
    assert heard(tmp_path, pedal(63), on(60), off(60, 100), pedal(0, 100)) == [[0, 10, 60, 64]]


def test_drums_are_left_out(tmp_path):
    assert heard(tmp_path, on(40, channel=9), on(60, 100), off(60, 100), off(40, channel=9)) == [[0, 10, 60, 64]]


def test_two_channels_on_one_pitch(tmp_path):
    # struck at once: the longer and the louder; struck later: the first ends there
    assert heard(
        tmp_path, on(60), on(60, velocity=90, channel=1), off(60, 100), off(60, 100, channel=1),
        on(62), on(62, 100, channel=1), off(62, 100), off(62, 100, channel=1),
    ) == [[0, 20, 60, 90], [20, 30, 62, 64], [30, 50, 62, 64]]  # fmt: skip


def test_the_shortest_note_lasts_a_hundredth(tmp_path):
    assert heard(tmp_path, on(60), off(60, 1)) == [[0, 1, 60, 64]]


def test_what_is_written_is_what_is_read(tmp_path):
    notes = random_notes()
    write_notes(tmp_path / "song.mid", notes)
    np.testing.assert_array_equal(read_notes((tmp_path / "song.mid").read_bytes()), notes)


def test_events_say_the_notes():
    notes = np.array([[0, 230, 60, 66], [100, 101, 64, 66], [100, 230, 67, 10]])
    assert EVENTS.events(notes).tolist() == [
        356 + 16, 60, 256 + 99, 64, 356 + 2, 67, 256, 128 + 64, 256 + 99, 256 + 28, 128 + 60, 128 + 67
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_notes_come_back_from_their_events(seed):
    notes = random_notes(seed)
    events = EVENTS.events(notes)
    assert 0 <= events.min() <= events.max() < EVENTS.symbols == 388
    tokens = np.append(0, events.astype(np.int64) + 1)
    np.testing.assert_array_equal(EVENTS.notes(tokens), notes)
    assert EVENTS.duration(tokens[1:]) == notes[:, 1].max()


def test_whatever_is_sampled_can_be_written(tmp_path):
    tokens = seeds.generator(0).integers(1, EVENTS.size, 3000)
    notes = EVENTS.notes(tokens)
    assert (notes[:, 0] < notes[:, 1]).all()
    assert notes[:, 1].max() <= EVENTS.duration(tokens) + 1
    write_notes(tmp_path / "song.mid", notes)
    np.testing.assert_array_equal(read_notes((tmp_path / "song.mid").read_bytes())[:, 2:], notes[:, 2:])


@pytest.mark.slow
@pytest.mark.parametrize("notes", [random_notes(), np.zeros((0, 4), dtype=np.int32)])
def test_a_picture(tmp_path, notes):
    duration = int(notes[:, 1].max(initial=0))
    draw_played(tmp_path / "roll.png", notes, duration=duration, given=duration // 3, title="t")
    assert (tmp_path / "roll.png").read_bytes().startswith(b"\x89PNG")
