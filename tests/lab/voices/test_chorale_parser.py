"""parse_chorale: made-up scores with every rule in them, and real chorales against their printed beginnings."""

from fractions import Fraction
from pathlib import Path

import pytest
from music21 import chord, meter, note, stream, tie

from relattn_lab.voices.chorale_parser import chorale_paths, parse_chorale


def n(pitch: str, beats: float | Fraction, tied: str | None = None) -> note.Note:
    made = note.Note(pitch, quarterLength=beats)
    made.tie = tie.Tie(tied) if tied else None
    return made


def part(upbeat: list, *bars: list) -> stream.Part:
    """A part in 3/4 that begins with an upbeat of one beat."""
    first = stream.Measure([meter.TimeSignature("3/4"), *upbeat], number=0)
    first.paddingLeft = 2.0
    made = stream.Part([first])
    for number, bar in enumerate(bars, start=1):
        measure = stream.Measure(number=number)
        for element in bar:
            # a voice lies beside the others, a note after the ones before it
            measure.insert(0, element) if isinstance(element, stream.Voice) else measure.append(element)
        made.append(measure)
    return made


def voice(*notes: note.GeneralNote) -> stream.Voice:
    made = stream.Voice()
    for one in notes:
        made.append(one)
    return made


def rest(beats: float) -> note.Rest:
    return note.Rest(quarterLength=beats)


def written(folder: Path, *parts: stream.Part) -> Path:
    score = stream.Score()
    for one in parts:
        score.insert(0, one)
    return Path(score.write("musicxml", folder / "made.musicxml"))


def test_every_rule(tmp_path):
    third = Fraction(1, 3)
    soprano = part(
        [n("C5", 1)],
        [n("C5", third), n("D5", third), n("E5", third), n("F5", 2, "start")],  # a triplet; a tie over the bar
        [n("F5", 1, "stop"), n("G5", 2)],
    )
    alto = part(
        [n("A4", 1)],
        [n("G4", 0.125), n("A4", 0.125), n("B4", 0.25), n("C4", 0.5), rest(2)],  # two 32nds on one step; a rest
        [n("A4", 1), n("A4", 1), n("B4", 1)],  # repeated notes
    )
    tenor = part(
        [n("E4", 1)],
        [n("B4", 1).getGrace(), chord.Chord(["C4", "E4", "G3"], quarterLength=3)],  # a grace note; a chord
        [n("D4", 3)],
    )
    bass = part(
        [n("C3", 1)],
        [voice(n("E3", 1), n("E2", 2)), voice(n("C3", 2), rest(1))],  # two voices on a staff
        [n("C3", 2)],  # a part that ends before the others
    )
    piece = parse_chorale(written(tmp_path, soprano, alto, tenor, bass))
    assert piece is not None
    assert (piece.name, piece.upbeat, piece.bar_steps) == ("made", 4, 12)
    voices = piece.steps.T.tolist()
    assert voices[0] == [72] * 4 + [72, 72, 74, 76] + [77] * 12 + [79] * 8
    assert voices[1] == [69] * 4 + [67, 71, 60, 60] + [-1] * 8 + [69] * 8 + [71] * 4
    assert voices[2] == [64] * 4 + [64] * 12 + [62] * 12
    assert voices[3] == [48] * 4 + [52] * 4 + [48] * 4 + [40] * 4 + [48] * 8 + [-1] * 4


@pytest.mark.parametrize("count", [3, 5])
def test_only_four_parts_make_a_piece(tmp_path, count):
    parts = [part([n("C4", 1)], [n("D4", 3)]) for _ in range(count)]
    assert parse_chorale(written(tmp_path, *parts)) is None


def test_the_files():
    paths = chorale_paths()
    assert {path.suffix for path in paths} == {".mxl"}
    assert len(paths) == len({path.stem for path in paths}) == 408


# As printed: the number of steps before the first bar line, the bar's, all; the first steps' voices, one line per beat
REAL = {
    # Aus meines Herzens Grunde, G major, 3/4
    "bwv269": (4, 12, 252, ["G4 D4 B3 G2", "G4 D4 B3 G3", "G4 E4 C4 E3", "D5 D4 A3 F#3", "B4 D4 G3 G3"]),
    # Ach bleib bei uns, A major, 4/4
    "bwv253": (4, 16, 160, ["C#5 A4 E4 A2", "C#5 A4 E4 A3", "E5 B4 E4 G#3", "C#5 A4 E4 A3", "A4 A4 E4 F#3"]),
    # Eins ist not, D major, begins on the bar in 4/4 (and goes on in 3/4)
    "bwv304": (0, 16, 324, ["A4 F#4 D4 D3", "G4 D4 A3 D3", "B4 D4 B3 G3", "B4 G4 E4 E3"]),
}


@pytest.mark.parametrize("name", REAL)
def test_a_real_chorale(name):
    upbeat, bar_steps, length, beats = REAL[name]
    piece = parse_chorale(next(path for path in chorale_paths() if path.stem == name))
    assert piece is not None
    assert (piece.name, piece.upbeat, piece.bar_steps, len(piece.steps)) == (name, upbeat, bar_steps, length)
    expected = [[note.Note(pitch).pitch.midi for pitch in beat.split()] for beat in beats]
    assert piece.steps[: 4 * len(beats) : 4].tolist() == expected


def test_a_real_piece_with_more_than_four_parts():
    # bwv8.6: four voices and a continuo
    assert parse_chorale(next(path for path in chorale_paths() if path.stem == "bwv8.6")) is None
