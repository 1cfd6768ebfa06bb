"""Played music: the notes of any MIDI file, in hundredths of a second, in and out."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import mido
import numpy as np

from relattn.cli.files import atomic_path, reason_of

STEPS_PER_SECOND = 100
DRUMS = 9
SUSTAIN = 64
PIANO = 0
SEPARATE = 2
"""The type of a file whose tracks are pieces of their own."""
TICKS_PER_BEAT = 500  # with two beats a second a tick is a millisecond
START, END, PITCH, VELOCITY = range(4)
HEADER = b"MThd"
LONGEST = 24 * 60 * 60


class UnusableError(ValueError):
    """Why a file gives no notes, after the word "which"."""


def read_notes(content: bytes) -> np.ndarray:
    """The notes of a MIDI file's bytes, int32 [N, 4]: start and end in hundredths of a second, pitch, velocity 1..127.

    All tracks and channels but the drums' (10) are heard as one instrument. A note goes on while its channel's sustain
    pedal is down, and ends where its pitch is struck again; one struck twice at once is the louder. The first note
    starts at 0; notes are in the order of start and pitch.

    Raises UnusableError: for a file that cannot be read, holds no note, or lasts for more than a day.
    """
    struck = _struck_notes(_parsed(content))
    if not struck:
        raise UnusableError("holds no notes (drums do not count)")
    notes = np.array(struck)
    notes[:, START:PITCH] -= notes[:, START].min()
    seconds = notes[:, END].max()
    if seconds > LONGEST:
        raise UnusableError(f"lasts for {seconds:.0f} seconds, more than a day")
    notes[:, START:PITCH] = np.round(notes[:, START:PITCH] * STEPS_PER_SECOND)
    return without_overlaps(notes.astype(np.int32))


def _parsed(content: bytes) -> mido.MidiFile:
    """The song, on one time.

    Raises UnusableError: as `read_notes`.
    """
    if not content:
        raise UnusableError("is empty")
    if content.startswith(b"RIFF"):
        raise UnusableError("is a RIFF file, which may hold a MIDI file (RMID): save that one by itself")
    if not content.startswith(HEADER):
        raise UnusableError("is no MIDI file, for it does not begin with MThd")
    try:
        song = mido.MidiFile(file=BytesIO(content))
    except EOFError:
        raise UnusableError("is cut off") from None
    except Exception as error:  # damaged bytes can make anything of mido
        raise UnusableError(f"mido cannot read ({reason_of(error)})") from error
    if song.type == SEPARATE:
        raise UnusableError("is of type 2, whose tracks are pieces of their own")
    if song.type not in (0, 1):
        raise UnusableError(f"is of type {song.type}, which the standard does not have")
    if song.ticks_per_beat == 0:
        raise UnusableError("has a division of 0, so that its ticks have no length")
    if song.ticks_per_beat < 0:
        raise UnusableError("has a division in frames of film (SMPTE), which mido does not read")
    return song


def _struck_notes(song: mido.MidiFile) -> list[tuple[float, float, int, int]]:
    """(start, end, pitch, velocity) of every note, in seconds."""
    struck, sounding, held, down = [], {}, {}, set()
    now = 0.0

    def end(key: tuple[int, int]) -> None:
        start, velocity = sounding.pop(key)
        held.pop(key, None)
        struck.append((start, now, key[1], velocity))

    for message in song:
        now += message.time
        if message.is_meta or getattr(message, "channel", DRUMS) == DRUMS:
            continue
        if message.type == "control_change" and message.control == SUSTAIN:
            if message.value >= 64:
                down.add(message.channel)
            else:
                down.discard(message.channel)
                for key in [key for key in held if key[0] == message.channel]:
                    end(key)
        elif message.type in ("note_on", "note_off"):
            key = (message.channel, message.note)
            released = message.type == "note_off" or message.velocity == 0
            if released and message.channel in down and key in sounding:
                held[key] = True
            elif key in sounding:
                end(key)
            if not released:
                sounding[key] = (now, message.velocity)
    for key in list(sounding):
        end(key)
    return struck


def without_overlaps(notes: np.ndarray) -> np.ndarray:
    """`notes` [N, 4] in order, each at least one step long, and no two of one pitch at once."""
    kept: list[list[int]] = []
    latest: dict[int, list[int]] = {}
    for start, end, pitch, velocity in sorted(notes.tolist()):
        note = [start, max(end, start + 1), pitch, velocity]
        before = latest.get(pitch)
        if before is not None and before[START] == start:
            before[END], before[VELOCITY] = max(before[END], note[END]), max(before[VELOCITY], velocity)
            continue
        if before is not None:
            before[END] = min(before[END], start)
        latest[pitch] = note
        kept.append(note)
    return np.array(sorted(kept, key=lambda note: (note[START], note[PITCH])), dtype=np.int32).reshape(-1, 4)


def write_notes(path: str | Path, notes: np.ndarray) -> None:
    """Writes `notes` [N, 4] (see `read_notes`) as a MIDI file of one piano track; whole or not at all.

    Raises what `atomic_path` raises.
    """
    track = mido.MidiTrack()
    track.append(mido.MetaMessage("set_tempo", tempo=500_000))
    track.append(mido.Message("program_change", program=PIANO))
    # at one time, what ends comes before what begins
    moments = [(int(end), 0, int(pitch), 0) for _, end, pitch, _ in notes]
    moments += [(int(start), 1, int(pitch), int(velocity)) for start, _, pitch, velocity in notes]
    now = 0
    for time, begins, pitch, velocity in sorted(moments):
        ticks = (time - now) * 1000 // STEPS_PER_SECOND
        track.append(mido.Message("note_on" if begins else "note_off", note=pitch, velocity=velocity, time=ticks))
        now = time
    song = mido.MidiFile(type=0, ticks_per_beat=TICKS_PER_BEAT)
    song.tracks.append(track)
    with atomic_path(path) as temporary:
        song.save(temporary)
