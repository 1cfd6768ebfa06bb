"""One token through a whole layer with a cache: RelativeMultiheadAttention and KVCache at 8,192 keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from measure.studies.study import Figures, Study, figures_of, shown, table
from relattn.cli.bench.timing import interleaved
from relattn.encodings.catalogue import CATALOGUE, Layer
from relattn.nn import KVCache, RelativeMultiheadAttention

HEADS, WIDTH, HELD, ROOM = 8, 64, 8191, 64
MODEL = HEADS * WIDTH
SECONDS = 1.0
DTYPES, BATCHES = ("float32", "bfloat16"), (1, 4)
SETTING = (
    "Beside it, turn by turn, a layer by hand: four linear maps around PyTorch's own attention, over buffers into "
    f"which the new key and value are copied. H = {HEADS}, D = {WIDTH}, {HELD + 1:,} keys, no gradients, two threads. "
    "Time of relattn's layer / that by hand, medians of at least fifteen pairs; ± marks quartiles that lie more than "
    "10 % apart. After each token the cache is cut back, which is in the time."
)

ENCODINGS = ("none", "relative", "relative-heads", "shaw", "transformer-xl", "t5", "alibi", "rope")


def study(name: str) -> Study:
    """Every encoding, dtype and batch."""
    measurements = {
        key_of(encoding, dtype, batch): partial(measured, encoding, batch, dtype)
        for encoding in ENCODINGS
        for dtype in DTYPES
        for batch in BATCHES
    }
    return Study(SETTING, measurements, markdown)


def key_of(encoding: str, dtype: str, batch: int) -> str:
    """The name of a measurement."""
    return f"{encoding}, {dtype}, B = {batch}"


@torch.no_grad()
def measured(encoding: str, batch: int, dtype: str, seconds: float = SECONDS, held: int = HELD) -> Figures:
    """The ratio's median and quartiles."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    hand, ours = by_hand(batch, held, kind), layer(encoding, batch, held, kind)
    token = torch.randn(batch, 1, MODEL).to(kind)
    return {"ratio": figures_of(interleaved(lambda: hand(token), lambda: ours(token), seconds, "cpu").ratio)}


def by_hand(batch: int, held: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The step that a user would write: the newest key and value take the last slot of the buffers."""
    q_proj, k_proj, v_proj, out_proj = (nn.Linear(MODEL, MODEL).to(dtype) for _ in range(4))
    keys, values = torch.randn(2, batch, HEADS, held + ROOM, WIDTH).to(dtype)

    def heads(features: Tensor) -> Tensor:
        return features.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    def step(token: Tensor) -> Tensor:
        query = heads(q_proj(token))
        keys[:, :, held : held + 1] = heads(k_proj(token))
        values[:, :, held : held + 1] = heads(v_proj(token))
        attended = F.scaled_dot_product_attention(query, keys[:, :, : held + 1], values[:, :, : held + 1])
        return out_proj(attended.transpose(1, 2).flatten(2))

    return step


def layer(name: str, batch: int, held: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A step of our layer, over a cache with spare room; the cache is as before after it."""
    encoding = CATALOGUE[name].build(Layer(HEADS, WIDTH, held + ROOM, causal=True))
    attention = RelativeMultiheadAttention(MODEL, HEADS, encoding).to(dtype)
    cache = KVCache()
    key, value = torch.randn(2, batch, HEADS, held, WIDTH).to(dtype)
    cache.append(key, value)

    def step(token: Tensor) -> Tensor:
        output = attention(token, is_causal=True, cache=cache)
        cache.truncate(held)
        return output

    return step


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each encoding."""
    places = [(dtype, batch) for dtype in DTYPES for batch in BATCHES]
    columns = {"encoding": "---"} | {f"{dtype}, B = {batch}": "---:" for dtype, batch in places}
    return table(columns, [
        [name, *(shown(figures[key_of(name, *place)]["ratio"]) for place in places)] for name in ENCODINGS
    ])  # fmt: skip
