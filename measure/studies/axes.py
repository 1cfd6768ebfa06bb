"""Time and memory of attention over several axes, beside transformers' code for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LayoutLMv3Config
from transformers.models.sam.modeling_sam import SamVisionAttention, SamVisionSdpaAttention

from measure.memory import GIB, MIB, Memory, TooMuchError, available, current, in_own_process, peak, reset_peak
from measure.peers.axes import LAYOUT_TABLES, layout_attention, sam_attention, swin_attention
from measure.studies.study import Figures, Study, figures_of, shown, table
from relattn import GridBias, OffsetTable, ScoreTerms, grid, relative_attention
from relattn.cli.bench.timing import interleaved
from relattn.errors import UnsupportedError

PATIENCE = 300.0
SECONDS = 4.0
KINDS = {"forward": False, "step": True}
WORST = 1e-4
"""The largest error of any output or gradient in float32, as a share of the largest number of its kind."""


@dataclass
class Case:
    """The tensors with gradients, by name, and the ways to compute the output from them."""

    leaves: dict[str, Tensor]
    ways: dict[str, Callable[[], Tensor]]

    def step(self, way: str, training: bool) -> list[Tensor]:
        """The output, and in training the gradient of every leaf, None where the way has none."""
        with torch.set_grad_enabled(training):
            output = self.ways[way]()
        if not training:
            return [output]
        upstream = torch.linspace(-1.0, 1.0, output.shape[-1], dtype=output.dtype).expand_as(output)
        leaves = list(self.leaves.values())
        return [output.detach(), *torch.autograd.grad(output, leaves, upstream, allow_unused=True)]


def _leaves(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape).mul_(0.5).requires_grad_() for name, shape in shapes.items()}


def _backends(call: Callable[..., Tensor]) -> dict[str, Callable[[], Tensor]]:
    """relattn's ways, `call` with each backend."""
    names = ("dense", "native")
    return {f"relattn {name}": (lambda name=name: call(backend=name)) for name in names}


def sam(side: int, double: bool) -> Case:
    """Decomposed rows for dy and dx, added unscaled: r = q / scale. The floor is transformers' path through sdpa."""
    heads, width = 12, 64
    leaves = _leaves(qkv=(1, side, side, 3 * heads * width), h=(2 * side - 1, width), w=(2 * side - 1, width))
    leaves = _in_double(leaves) if double else leaves

    def theirs(kind: type[SamVisionAttention]) -> Callable[[], Tensor]:
        module = sam_attention(kind, heads, width)
        module.rel_pos_h, module.rel_pos_w = leaves["h"], leaves["w"]
        return lambda: module(leaves["qkv"])[0]

    def ours(**others: Any) -> Tensor:
        qkv = leaves["qkv"].reshape(1, side * side, 3, heads, width).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        r, where = query * width**0.5, grid(side, side)
        terms = ScoreTerms()
        for axis, name in (("y", "h"), ("x", "w")):
            table = OffsetTable(leaves[name].flip(0).unsqueeze(0), 1 - side)  # SAM counts query - key
            terms = terms + ScoreTerms(relative_query=r, relative_keys=table).on(axis)
        output = relative_attention(
            query, key, value, encoding=terms, query_position=where, key_position=where, **others
        )  # fmt: skip
        return output.transpose(1, 2).reshape(1, side, side, -1)

    return Case(
        leaves,
        {"transformers sdpa": theirs(SamVisionSdpaAttention), "transformers eager": theirs(SamVisionAttention)}
        | _backends(ours)
        | {"reference": lambda: ours(backend="reference")},
    )


def swin(window: int, double: bool) -> Case:
    """64 windows with one table of biases. The floor is transformers' code through sdpa."""
    batch, heads, width, length = 64, 4, 32, window * window
    shape = (batch, length, heads * width)
    leaves = _leaves(q=shape, k=shape, v=shape, bias=((2 * window - 1) ** 2, heads))
    leaves = _in_double(leaves) if double else leaves
    encoding: Any = GridBias((window, window), heads).to(leaves["bias"].dtype)
    del encoding.bias
    encoding.bias = leaves["bias"]

    def theirs(implementation: str) -> Callable[[], Tensor]:
        projected = [leaves[name] for name in "qkv"]
        module = swin_attention(implementation, projected, leaves["bias"], heads, width, (window, window))
        return lambda: module(leaves["q"])[0]

    def split(name: str) -> Tensor:
        return leaves[name].view(batch, length, heads, width).transpose(1, 2)

    def ours(**others: Any) -> Tensor:
        where = grid(window, window)
        output = relative_attention(
            split("q"), split("k"), split("v"), encoding=encoding, query_position=where, key_position=where, **others
        )  # fmt: skip
        return output.transpose(1, 2).flatten(2)

    return Case(
        leaves,
        {"transformers sdpa": theirs("sdpa"), "transformers eager": theirs("eager")}
        | _backends(ours)
        | {"reference": lambda: ours(backend="reference")},
    )


def layout(length: int, double: bool) -> Case:
    """Buckets of the text order, of x and of y; a page of `length` words. transformers gives its tables no gradient."""
    heads, width = 12, 64
    shape = (1, length, heads * width)
    config = LayoutLMv3Config()
    buckets = {"text": config.rel_pos_bins, "x": config.rel_2d_pos_bins, "y": config.rel_2d_pos_bins}
    leaves = _leaves(q=shape, k=shape, v=shape, **{axis: (heads, count) for axis, count in buckets.items()})
    leaves = _in_double(leaves) if double else leaves
    encoder, module = layout_attention("eager", [leaves[name] for name in "qkv"], heads, width)
    for axis, name in zip(buckets, LAYOUT_TABLES, strict=True):
        getattr(encoder, name).weight = leaves[axis]
    boxes = torch.zeros(1, length, 4, dtype=torch.int64)
    boxes[..., 0], boxes[..., 3] = torch.randint(0, 1001, (2, 1, length))
    numbers = torch.arange(length).unsqueeze(0)

    def theirs() -> Tensor:
        return module(leaves["q"], position_bias=encoder._compute_position_bias(numbers, boxes))[0]

    def table(axis: str, furthest: int, count: int) -> OffsetTable:
        offsets = torch.arange(-furthest, furthest + 1)
        bucket = encoder.relative_position_bucket(offsets, num_buckets=count, max_distance=furthest)
        return OffsetTable(F.embedding(bucket, leaves[axis].t()).t() * width**-0.5, -furthest, "clamp")

    def ours(**others: Any) -> Tensor:
        query, key, value = (leaves[name].view(1, length, heads, width).transpose(1, 2) for name in "qkv")
        terms = ScoreTerms(bias=table("text", config.max_rel_pos, config.rel_pos_bins))
        for axis in "xy":
            of_axis = ScoreTerms(bias=table(axis, config.max_rel_2d_pos, config.rel_2d_pos_bins))
            terms = terms + of_axis.on(axis)
        where = {"x": boxes[0, :, 0], "y": boxes[0, :, 3]}
        output = relative_attention(
            query, key, value, encoding=terms, query_position=where, key_position=where, **others
        )  # fmt: skip
        return output.transpose(1, 2).flatten(2)

    return Case(
        leaves, {"transformers eager": theirs} | _backends(ours) | {"reference": lambda: ours(backend="reference")}
    )


def _in_double(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().double().requires_grad_() for name, tensor in leaves.items()}


TABLES: dict[str, tuple[Callable[[int, bool], Case], int, tuple[int, ...], str]] = {
    "sam": (sam, 6, (48, 64), "SAM-B's global attention over side x side tokens, 12 heads of 64."),
    "swin": (swin, 4, (7, 14), "64 windows of side x side tokens, 4 heads of 32."),
    "layoutlm": (
        layout, 40, (512, 2048),
        "Tokens with 12 heads of 64. Our ways give all three tables a gradient; transformers' code gives them none.",
    ),
}  # fmt: skip
"""For each study: its cases, the size of the check, the measured sizes, and what they are."""
SETTING = (
    " float32, two threads, projections left out. Memory: MiB of one step in a process of its own, beyond inputs, "
    "output and gradients. Times are ratios to the first way, medians of at least fifteen pairs taken in turn; ± marks "
    "quartiles that lie more than 10 % apart. Every way is first compared with the reference backend in float64."
)


def study(name: str) -> Study:
    """Every size and way."""
    make, small, sizes, what = TABLES[name]
    ways = [way for way in make(small, False).ways if way != "reference"]
    measurements = {f"{size}, {way}": partial(measured, name, size, way) for size in sizes for way in ways}
    return Study(what + SETTING, measurements, markdown, packages=("torch", "transformers"))


def measured(name: str, size: int, way: str, seconds: float = SECONDS) -> Figures:
    """Memory of a forward pass and of a training step, and their times over those of the first way."""
    try:
        check(name, way)
    except UnsupportedError as error:
        return {"reason": str(error).partition(";")[0]}
    found: Figures = {}
    for kind, training in KINDS.items():
        found[kind] = _memory(name, size, way, training)
        if "mib" in found[kind]:
            found[kind] |= _ratio(TABLES[name][0](size, False), way, training, seconds)
    return found


def check(name: str, way: str) -> None:
    """Compare a way with the reference in float64 at the small size.

    Raises RuntimeError: where they differ; UnsupportedError: where the way cannot run this.
    """
    make, small, _, _ = TABLES[name]
    truth, answers = make(small, True).step("reference", True), make(small, False).step(way, True)
    for one, true in zip(answers, truth, strict=True):
        off = 0.0 if one is None else float((one - true).abs().max() / true.abs().max())
        if not off < WORST:
            raise RuntimeError(f"{name}, {way}: {off:.1e} off")


def _step_in_process(began: Callable[[], None], name: str, size: int, way: str, training: bool, threads: int) -> Memory:
    torch.set_num_threads(threads)
    make, small, _, _ = TABLES[name]
    make(small, False).step(way, training)
    case = make(size, False)
    held, before = sum(leaf.nbytes for leaf in case.leaves.values()), current("cpu")
    began()
    reset_peak("cpu")
    start = time.perf_counter()
    returned = case.step(way, training)
    seconds = time.perf_counter() - start
    return Memory(held, peak("cpu") - before, sum(tensor.nbytes for tensor in returned if tensor is not None), seconds)


def _memory(name: str, size: int, way: str, training: bool) -> Figures:
    arguments = name, size, way, training, torch.get_num_threads()
    try:
        found = in_own_process(_step_in_process, arguments, available("cpu") - GIB, PATIENCE)
    except TooMuchError as error:
        return {"failed": str(error)}
    return {"mib": round(found.beyond / MIB)}


def _ratio(case: Case, way: str, training: bool, seconds: float) -> Figures:
    """The ratio to the first way; nothing for that one itself."""
    floor = next(iter(case.ways))
    if way == floor:
        return {}
    timing = interleaved(lambda: case.step(floor, training), lambda: case.step(way, training), seconds, "cpu")
    return {"ratio": figures_of(timing.ratio)}


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each size and way."""
    columns = {"side or tokens": "---", "way": "---"} | {
        f"{kind}, {what}": "---:" for kind in KINDS for what in ("MiB", "time")
    }
    rows = []
    for key, found in figures.items():
        size, way = key.split(", ", 1)
        cells = [found["reason"]] if "reason" in found else []
        for kind in KINDS if not cells else ():
            of_kind = found[kind]
            cells += [
                str(of_kind.get("mib", of_kind.get("failed"))),
                shown(of_kind["ratio"]) if "ratio" in of_kind else "1" if "mib" in of_kind else "",
            ]
        rows.append([size, way, *cells, *[""] * (2 * len(KINDS) - len(cells))])
    return table(columns, rows)
