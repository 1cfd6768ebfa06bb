"""Played music: the notes of any MIDI file, as events."""
