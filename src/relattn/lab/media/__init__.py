"""Kinds of data, as composing knows them: four voices, text, played music."""

from relattn.lab.media.base import Medium, Opening, Request
from relattn.lab.media.played import PlayedMusic
from relattn.lab.media.text import Text
from relattn.lab.media.voices import FourVoices

MEDIA: dict[str, Medium] = {"voices": FourVoices(), "text": Text(), "midi": PlayedMusic()}

__all__ = ["MEDIA", "Medium", "Opening", "Request"]
