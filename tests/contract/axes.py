"""The registry of encodings on other axes than the sequence: each beside its oracle, as in `cases`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from relattn import (
    FunctionBias,
    GridBias,
    GridEmbedding,
    LogGridBias,
    RelativeEmbedding,
    RelativeEncoding,
    ScoreTerms,
    T5Bias,
)
from relattn.positions.positions import Positions
from tests.contract.cases import (
    EncodingCase,
    Part,
    alibi,
    disentangled,
    kerple,
    key_query,
    relative,
    relative_short,
    rope,
    shaw,
    t5,
    txl,
    txl_learned,
)
from tests.contract.settings import Setting

YX, TYX = ("y", "x"), ("t", "y", "x")
GRIDS, ANY = ("grid", "class token"), ("grid", "class token", "mixed")


@dataclass(frozen=True)
class AxesCase(EncodingCase):
    """A case whose encodings stand on axes. layouts: what kinds of positions it takes (`places.make_places`)."""

    axes: tuple[str, ...] = YX
    layouts: tuple[str, ...] = ANY

    def requirements(self) -> dict[str, Any]:
        """For `make_setting`."""
        return {**super().requirements(), "axes": self.axes, "layouts": self.layouts}


class OfAxis:
    """A setting whose `reach` is that on one axis, for the makers of `cases`."""

    def __init__(self, setting: Setting, axis: str):
        self.setting, self.axis = setting, axis

    def __getattr__(self, name: str) -> Any:
        return getattr(self.setting, name)

    def reach(self) -> int:
        """On that axis."""
        return self.setting.reach(self.axis)


def on(axis: str, make: Callable[..., Part], **settings: Any) -> Callable[[Setting], Part]:
    """A maker of `cases` for one axis."""

    def made(s: Setting) -> Part:
        part = make(OfAxis(s, axis), **settings)
        return part._replace(module=part.module.on(axis), settings={**part.settings, "on": axis})

    return made


def grid_bias(s: Setting, axes: tuple[str, ...] = YX, extra: int = 0, spare: int = 0) -> Part:
    """GridBias that reaches every offset; spare: rows that no pair reads."""
    sizes = tuple(s.reach(axis) + spare for axis in axes)
    module = GridBias(sizes, s.num_heads, axes=axes, extra=extra)
    return Part(module, "grid_bias", {"sizes": sizes, "axes": axes, "extra": extra})


def grid_embedding(s: Setting, axes: tuple[str, ...] = YX, *, shared: bool = True) -> Part:
    """GridEmbedding."""
    sizes = tuple(s.reach(axis) for axis in axes)
    module = GridEmbedding(s.head_dim, sizes, num_heads=None if shared else s.num_heads, axes=axes)
    return Part(module, "grid_embedding", {"sizes": sizes, "axes": axes})


def log_grid(s: Setting, axes: tuple[str, ...] = YX) -> Part:
    """LogGridBias, whose weights were trained on another grid."""
    trained = tuple(3 + number for number in range(len(axes)))
    sizes = tuple(s.reach(axis) for axis in axes)
    module = LogGridBias(sizes, s.num_heads, pretrained_sizes=trained, hidden=3, axes=axes)
    return Part(module, "log_grid", {"sizes": trained, "axes": axes})


class Unscaled(RelativeEncoding):
    """S_ij = scale * q_i . k_j + q_i . E[d], for attention of that scale: SAM's and MViTv2's."""

    def __init__(self, table: RelativeEmbedding, scale: float):
        super().__init__()
        self.table, self.scale = table, scale

    def terms(self, query: Tensor, key: Tensor, positions: Positions) -> ScoreTerms:
        return replace(self.table.terms(query, key, positions), relative_query=query / self.scale)


def decomposed(s: Setting, axes: tuple[str, ...] = YX) -> Part:
    """One table per axis, unscaled."""
    scale = 1.0 / math.sqrt(s.head_dim) if s.scale is None else s.scale
    each = [Unscaled(RelativeEmbedding(s.head_dim, s.reach(axis)), scale).on(axis) for axis in axes]
    return Part(sum(each[1:], start=each[0]), "decomposed", {"axes": axes})


def layoutlm_v3(s: Setting) -> Part:
    """LayoutLMv3's three biases, of few buckets."""
    sequence, x, y = (T5Bias(s.num_heads, num_buckets=8, max_distance=furthest) for furthest in (5, 6, 7))
    return Part(sequence + x.on("x") + y.on("y"), "layoutlm_v3", {"max_distances": (5, 6, 7)})


def pitch_and_time(s: Setting) -> Part:
    """The Music Transformer's three relations."""
    sequence, time, pitch = (
        RelativeEmbedding(s.head_dim, s.reach(axis), num_heads=s.num_heads) for axis in ("sequence", "time", "pitch")
    )
    return Part(sequence + time.on("time") + pitch.on("pitch"), "pitch_and_time", {})


class OfTheFirst(nn.Module):
    """The network of `cases.function`, over the first of several axes."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.first, self.last = nn.Linear(1, 3), nn.Linear(3, num_heads)

    def forward(self, offsets: Tensor) -> Tensor:
        return self.last(self.first(offsets[:, :1] / 4.0).tanh()).T


def function_of_one_axis(s: Setting) -> Part:
    """FunctionBias over ("z", "x") whose function reads the first alone: the oracle's function of "z"."""
    return Part(FunctionBias(OfTheFirst(s.num_heads), s.num_heads, axes=("z", "x")), "function", {"on": "z"})


def of(*makers: Callable[[Setting], Part], **requirements: Any) -> AxesCase:
    """The case of a sum of parts."""
    return AxesCase(lambda s: [make(s) for make in makers], **requirements)


AXES_CASES: dict[str, AxesCase] = {
    "swin": of(grid_bias),
    "swin_larger_table": of(partial(grid_bias, spare=2), layouts=GRIDS),
    "swin_video": of(partial(grid_bias, axes=TYX), axes=TYX),
    "swin_v2": of(log_grid),
    "beit": of(partial(grid_bias, extra=3), layouts=GRIDS),
    "grid_embedding": of(grid_embedding),
    "grid_embedding_per_head": of(partial(grid_embedding, shared=False)),
    "grid_of_one_axis": of(partial(grid_bias, axes=("x",)), axes=("x",)),
    "sam": of(decomposed),
    "mvit_v2": of(partial(decomposed, axes=TYX), axes=TYX),
    "layoutlm_v3": of(layoutlm_v3, layouts=("mixed", "grid")),
    "pitch_and_time": of(pitch_and_time, axes=("time", "pitch"), layouts=("mixed",)),
    "sequence_and_x": of(partial(grid_bias, axes=("sequence", "x")), axes=("x",), layouts=("grid", "mixed")),
    "function_of_two": of(function_of_one_axis, axes=("z", "x")),
    "shaw_on_both": of(on("y", shaw), on("x", shaw, max_distance=(1, 0), shared=False)),
    "key_query_on_both": of(on("y", key_query), on("x", key_query, shared=False)),
    "disentangled_on_y": of(on("y", disentangled, num_buckets=6)),
    "txl_on_y": of(on("y", txl)),
    "rope_on_x": of(on("x", rope)),
    "zero_and_clamp": of(
        on("y", relative_short, max_length=2, beyond="zero"), on("x", relative_short, max_length=2, beyond="clamp")
    ),
    "twice_on_x": of(on("x", t5), on("x", shaw), on("x", kerple)),
    "everywhere": of(relative, on("y", txl_learned), grid_bias, partial(grid_bias, extra=3), t5, layouts=GRIDS),
    "rope+on_axes": of(rope, on("y", alibi, learned=True), on("x", shaw)),
}  # fmt: skip
