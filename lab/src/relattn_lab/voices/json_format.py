"""Music from a JSON file in the format of the JSB Chorales data sets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from relattn_lab.corpus import SPLITS
from relattn_lab.voices.pieces import VOICES, MusicData, Piece

EXPECTED = (
    'expected {"train": [...], "valid": [...], "test": [...]}, '
    "each a list of pieces; each piece is a list of steps, each step four MIDI pitches"
)
FIELDS: dict[str, type] = {"name": str, "upbeat": int, "bar_steps": int, "steps": list}
"""Of a piece that is an object."""


def load_json(path: str | Path) -> MusicData:
    """The data in the JSON file `path`, in its own split.

    The file holds an object with the keys train, valid and test and no other. Each is a list of pieces, a piece is a
    list of steps (16th notes), a step is [soprano, alto, tenor, bass]: MIDI pitches 0..127 as integers, -1 where the
    voice is silent. Such a piece has no bar lines: it gets upbeat 0 and bars of 16 steps. A piece may also be an object
    with the fields of `Piece`: its steps, and its name, upbeat and bar_steps, or some of them.

    Raises FileNotFoundError: when there is no such file; ValueError: when it is anything else, naming file and place.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"data: got {str(path)!r}, which is not there; expected a JSON file of chorales")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"data: got {path}, which is not JSON ({error}); {EXPECTED}") from error
    if not isinstance(content, dict) or set(content) != set(SPLITS):
        came = f"an object with the keys {sorted(content)}" if isinstance(content, dict) else _kind(content)
        raise ValueError(f"data: got {path}, which holds {came}; {EXPECTED}")
    return MusicData(path.stem, *(_read_split(path, name, content[name]) for name in SPLITS))


def _read_split(path: Path, name: str, pieces: object) -> tuple[Piece, ...]:
    where = f"data: {path}: {name}"
    if not isinstance(pieces, list) or not pieces:
        raise ValueError(f"{where}: got {_kind(pieces)}; expected a list with at least one piece")
    return tuple(
        _read_piece(f"{where}[{index}]", piece, f"{path.stem} {name} {index}") for index, piece in enumerate(pieces)
    )


def _read_piece(where: str, piece: object, name: str) -> Piece:
    if not isinstance(piece, dict):
        return Piece(name, _read_steps(where, piece))
    for key, value in piece.items():
        kind = FIELDS.get(key)
        if kind is None:
            raise ValueError(f"{where}: got the field {key!r}; expected some of {', '.join(FIELDS)}")
        if type(value) is not kind:
            raise ValueError(f"{where}: got {_kind(value)} as {key}; expected {_kind(kind())}")
    if "steps" not in piece:
        raise ValueError(f"{where}: got an object without steps; expected them")
    try:
        return Piece(**{"name": name, **piece, "steps": _read_steps(where, piece["steps"])})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _read_steps(where: str, piece: object) -> np.ndarray:
    if not isinstance(piece, list) or not piece:
        raise ValueError(f"{where}: got {_kind(piece)}; expected a list with at least one step")
    for index, step in enumerate(piece):
        if not isinstance(step, list) or len(step) != len(VOICES):
            raise ValueError(f"{where}[{index}]: got {_kind(step)}; expected a step [soprano, alto, tenor, bass]")
        for voice, pitch in zip(VOICES, step, strict=True):
            # a bool is an int to Python, and JSON's true is no pitch
            if type(pitch) is not int or not -1 <= pitch <= 127:
                raise ValueError(
                    f"{where}[{index}]: got {json.dumps(pitch)} for the {voice}; "
                    "expected an integer MIDI pitch 0..127, or -1 for silence"
                )
    return np.array(piece, dtype=np.int16)


def _kind(value: object) -> str:
    """What `value` is, in JSON's words, with the length of a list."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names: dict[type, str] = {dict: "an object", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
