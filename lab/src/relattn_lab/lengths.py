"""How well models do on longer windows than those trained on, with tables clamped, zeroed or interpolated."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from torch.nn import functional as F

from relattn_lab.checkpoint import load_checkpoint
from relattn_lab.encodings import WITHIN_THE_TRAINED_LENGTH, lab_options
from relattn_lab.evaluate import evaluate
from relattn_lab.media import load_corpus
from relattn_lab.model import LabModel
from relattn_lab.results import summarize
from relattn_lab.support.files import write_json, write_text
from relattn_lab.support.progress import Progress
from relattn_lab.voices.places import steps_within
from relattn_lab.writing import explain_unwritten

FACTORS = (1, 2, 4, 8)
RECORD_FILE, TABLE_FILE = "lengths.json", "lengths.md"
AS_TRAINED, ZEROED, INTERPOLATED = "as trained", "zeroed", "interpolated"
CLAMPED = "clamped"
"""The word for "as trained" where a table has no row for every offset."""
TREATMENTS = (AS_TRAINED, ZEROED, INTERPOLATED)


def options_of(encoding: str, treatment: str, trained: int, length: int) -> dict[str, Any] | None:
    """The encoding's options, for windows of `length`, of a model that was trained on windows of `trained` tokens.

    zeroed: an offset without a row adds nothing. interpolated: the rows are stretched over the longer window, and
    rotary angles divided by the factor (Chen et al. 2023). None where an encoding has no such treatment.
    """
    options = lab_options(encoding, trained)
    if treatment == AS_TRAINED:
        return options
    if encoding == "rope" and treatment == INTERPOLATED:
        return {"scaling": {"rope_type": "linear", "factor": length / trained}}
    if not encoding.startswith("relative"):
        return None
    if treatment == ZEROED:
        return options | {"beyond": "zero"}
    longer = {"max_length": length} | ({"max_steps": steps_within(length)} if "max_steps" in options else {})
    return options | longer


def treated(model: LabModel, options: dict[str, Any]) -> LabModel:
    """The model with other options of its encoding; tables that are longer then have its rows, interpolated.

    Row r of R becomes row r (R' - 1) / (R - 1) of R', and those between lie on the line between two.
    """
    config = copy.deepcopy(model.config)
    config.encoding_options = options
    other = LabModel(config)
    state = model.state_dict()
    for name, weight in other.state_dict().items():
        if state[name].shape != weight.shape:
            columns = state[name].transpose(-1, -2)
            stretched = F.interpolate(columns, size=weight.shape[-2], mode="linear", align_corners=True)
            state[name] = stretched.transpose(-1, -2)
    other.load_state_dict(state)
    return other.eval()


class Lengths:
    """The models that an experiment has left in the folder `out`, evaluated on longer windows of the test pieces.

    Raises FileNotFoundError: when there is none.
    """

    def __init__(self, data: str, out: Path, progress: Progress):
        self.out, self.progress = out, progress
        self.runs = sorted(path.parent for path in out.glob("runs/*/model"))
        if not self.runs:
            raise FileNotFoundError(
                f"out: got {out}, which holds no trained model; expected the folder of `relattn-lab reproduce jsb`"
            )
        self.corpus = load_corpus(data)

    def run(self) -> str:
        """Evaluate what is not evaluated yet, and write and return the table."""
        for run in self.runs:
            if not (run / RECORD_FILE).is_file():
                record = self._evaluate(run)
                with explain_unwritten("the figures of longer windows", run):
                    write_json(run / RECORD_FILE, record)
        table = markdown([json.loads((run / RECORD_FILE).read_bytes()) for run in self.runs])
        with explain_unwritten("the table", self.out):
            write_text(self.out / TABLE_FILE, table)
        return table

    def _evaluate(self, run: Path) -> dict[str, Any]:
        model, _ = load_checkpoint(run / "model")
        encoding, trained = model.config.encoding, model.config.length
        factors = (1,) if encoding in WITHIN_THE_TRAINED_LENGTH else FACTORS
        losses: dict[str, dict[str, float]] = {}
        self.progress.begin(f"{run.name}: longer windows", len(factors))
        for done, factor in enumerate(factors, 1):
            length = factor * trained
            windows = self.corpus.evaluation_windows("test", length)
            for treatment in TREATMENTS if factor > 1 else (AS_TRAINED,):
                options = options_of(encoding, treatment, trained, length)
                if options is not None:
                    nats = evaluate(treated(model, options), windows).mean
                    losses.setdefault(treatment, {})[str(length)] = nats
            self.progress.advance(done)
        return {"encoding": encoding, "trained": trained, "losses": losses}


def markdown(records: list[dict[str, Any]]) -> str:
    """Nats per token by length, a row for every encoding and treatment; mean ± standard deviation over seeds."""
    lengths = [str(factor * records[0]["trained"]) for factor in FACTORS]
    lines = [f"| encoding | beyond the trained length | {' | '.join(lengths)} |", "|---|---|---:|---:|---:|---:|"]
    for encoding in dict.fromkeys(record["encoding"] for record in records):
        for treatment in TREATMENTS:
            found = [
                record["losses"][treatment]
                for record in records
                if record["encoding"] == encoding and treatment in record["losses"]
            ]
            if found:
                by_length = ([one[length] for one in found if length in one] for length in lengths)
                cells = [summarize(values).shown() if values else "refused" for values in by_length]
                words = treatment
                if treatment != AS_TRAINED:
                    cells[0] = ""
                elif "beyond" in lab_options(encoding, records[0]["trained"]):
                    words = CLAMPED
                lines.append(f"| `{encoding}` | {words} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
