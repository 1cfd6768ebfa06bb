"""Put a trained model into the package, with the pieces that it opens with: lab/src/relattn_lab/shipped/.

    relattn-lab compare --encodings relative --steps 4000 --width 128 --depth 4 --out runs/ship
    python -m measure.ship_model runs/ship

The folder is a checkpoint like any other. Its data are a part of the chorales: the test pieces of at least 128 steps up
to a number, and as few training pieces as span the range of every voice, which `relattn-lab compose` keeps to.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relattn_lab.checkpoint import DATA_FILE
from relattn_lab.voices.chorales import load_chorales
from relattn_lab.voices.medium import allowed_tokens
from relattn_lab.voices.pieces import Piece
from relattn_lab.voices.vocabulary import Vocabulary

SHIPPED = Path(__file__).parents[1] / "lab/src/relattn_lab/shipped"
PIECES_FILE = "chorales.json"
OPENINGS = 12
LEAST_STEPS = 128


def spanning(pieces: tuple[Piece, ...], vocabulary: Vocabulary) -> list[Piece]:
    """Pieces in which every voice may sing what it may in all of them; each adds the most that is lacking."""
    wanted, chosen = allowed_tokens(pieces, vocabulary), []
    while not chosen or (allowed_tokens(chosen, vocabulary) != wanted).any():
        chosen.append(max(pieces, key=lambda piece: allowed_tokens([*chosen, piece], vocabulary).sum()))
    return chosen


def as_json(piece: Piece) -> dict[str, Any]:
    """A piece as `load_json` reads it."""
    return asdict(piece) | {"steps": piece.steps.tolist()}


def main(run: Path) -> None:
    """Write the folder anew from the comparison in `run`."""
    results = json.loads((run / "results.json").read_bytes())
    (encoding,) = results["settings"]["encodings"]
    model = run / "runs" / f"{encoding}-seed0" / "model"
    card = json.loads((model / DATA_FILE).read_bytes())
    data = load_chorales()
    vocabulary = Vocabulary(**card["tokens"])
    tested = [piece for piece in data.test if len(piece.steps) >= LEAST_STEPS][:OPENINGS]
    pieces = {"train": spanning(data.train, vocabulary), "valid": list(data.valid[:1]), "test": tested}
    SHIPPED.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(model / name, SHIPPED / name)
    written = {split: [as_json(piece) for piece in some] for split, some in pieces.items()}
    (SHIPPED / PIECES_FILE).write_text(json.dumps(written, separators=(",", ":")) + "\n")
    (SHIPPED / DATA_FILE).write_text(json.dumps(card | {"data": PIECES_FILE}, indent=2) + "\n")
    (SHIPPED / "README.md").write_text(told(results, encoding, {split: len(some) for split, some in pieces.items()}))
    print(f"{SHIPPED}: {sum(path.stat().st_size for path in SHIPPED.iterdir()) / 2**20:.1f} MiB")


def told(results: dict[str, Any], encoding: str, counts: dict[str, int]) -> str:
    """The model card: what it is, its losses, and how it was made."""
    settings, length = results["settings"], str(results["lengths"][0])
    width, depth, heads, steps = (settings[name] for name in ("width", "depth", "heads", "steps_taken"))
    nats, ngram = results["summary"][encoding][length]["mean"], results["ngram"][length]["nats"]
    return f"""# The model that `relattn-lab compose` takes by itself

A transformer of {results["runs"][0]["parameters"]:,} parameters: width {width}, depth {depth}, {heads} heads, encoding
`{encoding}`. It was trained on Bach chorales, four voices on a grid of 16th notes, transposed at random:
{steps:,} steps of {settings["batch"]} windows of {length} tokens.

On the {results["data"]["test"]["pieces"]} test pieces it takes {nats:.3f} nats per token. The n-gram takes {ngram:.3f}.

Made by

    relattn-lab compare --encodings {encoding} --steps {steps} --width {width} --depth {depth} --out runs/ship
    python -m measure.ship_model runs/ship

`{PIECES_FILE}` holds {counts["test"]} of the test pieces, which it continues, one validation piece, and
{counts["train"]} training pieces, which span what every voice may sing. The music is J. S. Bach's, read from scores
that music21 carries.
"""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
