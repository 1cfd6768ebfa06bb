"""Steps as a MIDI file."""

from __future__ import annotations

from pathlib import Path

import mido
import numpy as np

from relattn.cli.files import atomic_path
from relattn_lab.voices.held import held_notes
from relattn_lab.voices.key import key_of
from relattn_lab.voices.pieces import STEPS_PER_BEAT, VOICES, check_steps

TICKS_PER_BEAT = 480
TICKS_PER_STEP = TICKS_PER_BEAT // STEPS_PER_BEAT
CHOIR_AAHS = 52
VELOCITY = 80
BEATS_PER_MINUTE = 72.0


def write_midi(
    path: str | Path,
    steps: np.ndarray,
    *,
    beats_per_minute: float = BEATS_PER_MINUTE,
    upbeat: int = 0,
    bar_steps: int = 16,
) -> None:
    """Writes `steps` [T, 4] as a standard MIDI file: a track of its own for the metre, then soprano to bass, a choir.

    The first track has the tempo, the time signature (of `bar_steps`, after one of the `upbeat` where there is one),
    and the key signature that `key_of` estimates. A step lasts a quarter of a beat. Equal pitches in a row are one held
    note, since the grid does not say where a note is struck again. The file replaces `path` whole or not at all.

    Raises ValueError: for a tempo outside 4..1000; and what `check_steps` and `atomic_path` raise.
    """
    check_steps(steps)
    if not 4 <= beats_per_minute <= 1000:
        raise ValueError(f"beats_per_minute: got {beats_per_minute}; expected 4..1000")
    song = mido.MidiFile(type=1, ticks_per_beat=TICKS_PER_BEAT)
    song.tracks.append(_metre(steps, beats_per_minute, upbeat, bar_steps))
    song.tracks.extend(_track(steps, voice) for voice in range(len(VOICES)))
    with atomic_path(path) as temporary:
        song.save(temporary)


def _metre(steps: np.ndarray, beats_per_minute: float, upbeat: int, bar_steps: int) -> mido.MidiTrack:
    track = mido.MidiTrack()
    track.append(mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(beats_per_minute)))
    track.append(mido.MetaMessage("key_signature", key=key_of(steps)))
    if upbeat:
        track.append(_time_signature(upbeat, at=0))
    track.append(_time_signature(bar_steps, at=upbeat))
    track.append(mido.MetaMessage("end_of_track", time=max(0, len(steps) - upbeat) * TICKS_PER_STEP))
    return track


def _time_signature(steps: int, at: int) -> mido.MetaMessage:
    """Of a bar of so many steps: in quarters where it has whole beats, else in sixteenths."""
    beats, rest = divmod(steps, STEPS_PER_BEAT)
    numerator, denominator = (steps, 4 * STEPS_PER_BEAT) if rest else (beats, 4)
    ticks = at * TICKS_PER_STEP
    return mido.MetaMessage("time_signature", numerator=numerator, denominator=denominator, time=ticks)


def _track(steps: np.ndarray, voice: int) -> mido.MidiTrack:
    track = mido.MidiTrack()
    track.append(mido.MetaMessage("track_name", name=VOICES[voice].capitalize()))
    track.append(mido.Message("program_change", channel=voice, program=CHOIR_AAHS))
    now = 0
    for note in held_notes(steps, voice):
        track.append(_message("note_on", voice, note.pitch, (note.start - now) * TICKS_PER_STEP))
        track.append(_message("note_off", voice, note.pitch, (note.end - note.start) * TICKS_PER_STEP))
        now = note.end
    track.append(mido.MetaMessage("end_of_track", time=(len(steps) - now) * TICKS_PER_STEP))
    return track


def _message(kind: str, voice: int, pitch: int, ticks: int) -> mido.Message:
    return mido.Message(kind, channel=voice, note=pitch, velocity=VELOCITY, time=ticks)
