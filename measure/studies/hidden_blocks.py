"""What hidden blocks cost: packed documents beside the documents as a batch, and a padded batch beside a full one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import relattn
from measure.studies.study import Figures, Study, figures_of, shown, table
from relattn.cli.bench.timing import interleaved

HEADS, WIDTH, SECONDS = 8, 64, 1.0
DOCUMENTS, LENGTHS = (512,) * 8, (2048, 512, 512, 256)
NAMES = ("none", "relative", "t5")
FORWARD, STEP = "forward", "training step"
SEGMENTS, PAIRS, PADDING = "segment_ids", "a boolean mask", "key_mask"
GOALS = {(SEGMENTS, FORWARD): 1.15, (SEGMENTS, STEP): 1.2, (PAIRS, FORWARD): 1.4}
"""Of packed documents."""
LARGER = 1.15
"""How much more than its share of the pairs a padded batch may take."""
SETTING = (
    "H = 8, D = 64, float32, two threads, `native`. relative: a row for every offset. Medians of at least fifteen "
    "pairs taken in turn; ± marks quartiles that lie more than 10 % apart in three rounds. "
)
SHOWN = {
    "packed": f"{len(DOCUMENTS)} documents of {DOCUMENTS[0]} positions in one row / the same documents as a batch.",
    "padded": f"A batch of lengths {', '.join(map(str, LENGTHS))}, by `key_mask` / the same without the mask. The goal "
    f"is {LARGER:g} times the share of the pairs that are visible.",
}


class Call(NamedTuple):
    """Its inputs and its masks."""

    inputs: list[Tensor]
    masks: dict[str, Any]


class Row(NamedTuple):
    """masked: by which argument pairs are hidden."""

    masked: str
    encoding: str
    mode: str

    def goal(self) -> float:
        """The bound on its ratio."""
        if self.masked == PADDING:
            return LARGER * sum(LENGTHS) / (len(LENGTHS) * max(LENGTHS))
        return GOALS[self.masked, self.mode]


def rows_of(name: str) -> dict[str, Row]:
    """The rows of a study, by their names."""
    kinds = list(GOALS) if name == "packed" else [(PADDING, FORWARD), (PADDING, STEP)]
    rows = [Row(masked, encoding, mode) for masked, mode in kinds for encoding in NAMES]
    return {", ".join(row): row for row in rows}


def study(name: str) -> Study:
    """Of packed documents, or of padding."""
    rows = rows_of(name)
    measurements = {key: partial(measured, row) for key, row in rows.items()}
    return Study(SETTING + SHOWN[name], measurements, partial(markdown, rows))


def measured(row: Row, seconds: float = SECONDS, shorter: int = 1) -> Figures:
    """The ratio's median and quartiles. shorter: by which factor every length is."""
    torch.manual_seed(0)
    lengths = [length // shorter for length in (LENGTHS if row.masked == PADDING else DOCUMENTS)]
    hidden, plain = _calls(row.masked, lengths)
    ours, floor = _timed(hidden, row), _timed(plain, row)
    return {"ratio": figures_of(interleaved(floor, ours, seconds, "cpu").ratio)}


def _calls(masked: str, lengths: list[int]) -> tuple[Call, Call]:
    """What hides pairs, and what it stands beside."""
    batch, longest = len(lengths), max(lengths)
    apart = [torch.randn(batch, HEADS, longest, WIDTH) for _ in range(3)]
    if masked == PADDING:
        kept = torch.arange(longest) < torch.tensor(lengths)[:, None]
        return Call(apart, {"key_mask": kept}), Call(apart, {})
    joined = [one.transpose(0, 1).reshape(1, HEADS, batch * longest, WIDTH) for one in apart]
    ids = (torch.arange(batch * longest) // longest)[None]
    masks = {"segment_ids": ids} if masked == SEGMENTS else {"attn_mask": (ids[:, :, None] == ids[:, None])[:, None]}
    return Call(joined, masks), Call(apart, {})


def _timed(call: Call, row: Row) -> Callable[[], object]:
    length = call.inputs[0].shape[2]
    encoding = {
        "none": lambda: None,
        "relative": lambda: relattn.RelativeEmbedding(WIDTH, length, num_heads=HEADS),
        "t5": lambda: relattn.T5Bias(HEADS),
    }[row.encoding]()
    leaves = [tensor.detach().requires_grad_(row.mode == STEP) for tensor in call.inputs]
    query, key, value = leaves

    def attend() -> Tensor:
        return relattn.relative_attention(query, key, value, encoding=encoding, backend="native", **call.masks)

    if row.mode == FORWARD:
        return torch.no_grad()(attend)
    leaves += [] if encoding is None else list(encoding.parameters())
    return lambda: torch.autograd.grad(attend().sum(), leaves)


def markdown(rows: Mapping[str, Row], figures: Mapping[str, Figures]) -> str:
    """One row for each call."""
    columns = {"by": "---", "encoding": "---", "": "---", "ratio": "---:", "goal": "---:", "met?": "---"}
    lines = []
    for key, found in figures.items():
        goal, ratio = rows[key].goal(), found["ratio"]
        lines.append([*rows[key], shown(ratio), f"{goal:.3g}", "met" if ratio[0] <= goal else "missed"])
    return table(columns, lines)
