"""Steps as a MIDI file."""

from __future__ import annotations

from pathlib import Path

import mido
import numpy as np

from relattn.lab.voices.held import held_notes
from relattn.lab.voices.pieces import STEPS_PER_BEAT, VOICES, check_steps
from relattn.support.files import atomic_path

TICKS_PER_BEAT = 480
CHOIR_AAHS = 52
VELOCITY = 80


def write_midi(path: str | Path, steps: np.ndarray, *, beats_per_minute: float = 72.0) -> None:
    """Writes `steps` [T, 4] as a standard MIDI file of four tracks, soprano to bass, in a choir's voices.

    A step lasts a quarter of a beat. Equal pitches in a row are one held note, since the grid does not say where a note
    is struck again. The file replaces `path` whole or not at all.

    Raises ValueError: for a tempo outside 4..1000; and what `check_steps` and `atomic_path` raise.
    """
    check_steps(steps)
    if not 4 <= beats_per_minute <= 1000:
        raise ValueError(f"beats_per_minute: got {beats_per_minute}; expected 4..1000")
    song = mido.MidiFile(type=1, ticks_per_beat=TICKS_PER_BEAT)
    song.tracks.extend(_track(steps, voice) for voice in range(len(VOICES)))
    song.tracks[0].insert(0, mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(beats_per_minute)))
    with atomic_path(path) as temporary:
        song.save(temporary)


def _track(steps: np.ndarray, voice: int) -> mido.MidiTrack:
    track = mido.MidiTrack()
    track.append(mido.MetaMessage("track_name", name=VOICES[voice].capitalize()))
    track.append(mido.Message("program_change", channel=voice, program=CHOIR_AAHS))
    ticks_per_step = TICKS_PER_BEAT // STEPS_PER_BEAT
    now = 0
    for note in held_notes(steps, voice):
        track.append(_message("note_on", voice, note.pitch, (note.start - now) * ticks_per_step))
        track.append(_message("note_off", voice, note.pitch, (note.end - note.start) * ticks_per_step))
        now = note.end
    track.append(mido.MetaMessage("end_of_track", time=(len(steps) - now) * ticks_per_step))
    return track


def _message(kind: str, voice: int, pitch: int, ticks: int) -> mido.Message:
    return mido.Message(kind, channel=voice, note=pitch, velocity=VELOCITY, time=ticks)
