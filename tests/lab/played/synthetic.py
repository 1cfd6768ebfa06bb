"""Small made-up MIDI files."""

from pathlib import Path

import mido

from tests import seeds


def write_midi(path: Path, *messages, ticks_per_beat=500, **options) -> Path:
    """A MIDI file of one track at two beats a second, where a tick is a millisecond; times are ticks since the last."""
    song = mido.MidiFile(ticks_per_beat=ticks_per_beat, **options)
    song.tracks.append(mido.MidiTrack(messages))
    song.save(path)
    return path


def on(pitch, time=0, velocity=64, channel=0):
    return mido.Message("note_on", note=pitch, velocity=velocity, time=time, channel=channel)


def off(pitch, time=0, channel=0):
    return mido.Message("note_off", note=pitch, time=time, channel=channel)


def pedal(value, time=0, channel=0):
    return mido.Message("control_change", control=64, value=value, time=time, channel=channel)


def write_folder(folder: Path, files: int = 4, notes: int = 40) -> Path:
    """A folder of MIDI files, the last in a folder of its own, of random notes one after another."""
    random = seeds.generator(0)
    (folder / "more").mkdir(parents=True)
    for number in range(files):
        messages = []
        for pitch in random.integers(60, 72, notes).tolist():
            messages += [on(pitch, 10, int(random.integers(1, 128))), off(pitch, 10 * int(random.integers(1, 60)))]
        write_midi((folder / "more" if number == files - 1 else folder) / f"song {number}.MID", *messages)
    return folder
