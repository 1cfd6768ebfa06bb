"""transformers 5.23: `VitsAttention`, Shaw's keys and values within a window, beside ours.

`emb_rel_k`, `emb_rel_v` [1, 2 w + 1, D] are RK and RV for the offsets -w .. w, w its window_size. What it does and the
paper does not: beyond the window it adds nothing, where Shaw et al. clip to the edge row. So it is not ShawEmbedding
but two tables that hold zero beyond, `Windowed` below. It scales the query before both products, as our scale does.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import VitsConfig
from transformers.models.vits.modeling_vits import VitsAttention

from relattn import OffsetTable, RelativeEncoding, ScoreTerms, ShawEmbedding
from relattn.nn import RelativeMultiheadAttention
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, HEAD_DIM, WINDOW = 2, 2, 4, 4
WIDTH = HEADS * HEAD_DIM
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


class Windowed(RelativeEncoding):
    """r_i . RK[d] and RV[d] for |d| <= window, nothing beyond."""

    def __init__(self, head_dim: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.relative_keys = nn.Parameter(torch.empty(1, 2 * window + 1, head_dim))
        self.relative_values = nn.Parameter(torch.empty(1, 2 * window + 1, head_dim))

    def terms(self, query, key, positions) -> ScoreTerms:
        tables = (OffsetTable(rows, -self.window, "zero") for rows in (self.relative_keys, self.relative_values))
        relative_keys, relative_values = tables
        return ScoreTerms(relative_query=query, relative_keys=relative_keys, relative_values=relative_values)


def arrays(length: int) -> dict[str, Tensor]:
    found = {f"{one}.weight": torch.randn(WIDTH, WIDTH) / 3 for one in PROJECTIONS}
    found |= {f"{one}.bias": torch.randn(WIDTH) for one in PROJECTIONS}
    tables = {one: torch.randn(1, 2 * WINDOW + 1, HEAD_DIM) for one in ("emb_rel_k", "emb_rel_v")}
    return {**found, **tables, "x": torch.randn(B, length, WIDTH)}


def theirs(a: dict[str, Tensor], kept: Tensor) -> Tensor:
    config = VitsConfig(hidden_size=WIDTH, num_attention_heads=HEADS, window_size=WINDOW, use_bias=True)
    module = VitsAttention(config).eval()
    mask = torch.where(kept[:, None, None], 0.0, torch.finfo(a["x"].dtype).min).to(a["x"].dtype)
    mask = mask.expand(-1, 1, kept.shape[1], -1)
    weights = {name: array for name, array in a.items() if name != "x"}
    return functional_call(module, weights, (a["x"],), {"attention_mask": mask})[0]


def ours(a: dict[str, Tensor], kept: Tensor, encoding: RelativeEncoding) -> Tensor:
    weights = {name: array for name, array in a.items() if name.partition(".")[0] in PROJECTIONS}
    weights |= {"encoding.relative_keys": a["emb_rel_k"], "encoding.relative_values": a["emb_rel_v"]}
    module = RelativeMultiheadAttention(WIDTH, HEADS, encoding)
    return functional_call(module, weights, (a["x"],), {"key_mask": kept})


def compare(encoding: RelativeEncoding, length: int, padded: int = 0) -> None:
    kept = torch.ones(B, length, dtype=torch.bool)
    kept[1, length - padded :] = False
    assert_same_numbers(
        lambda a: ours(a, kept, encoding),
        lambda a: theirs(a, kept),
        arrays(length),
        longest_sum(B, length, length, WIDTH, HEAD_DIM, relative_terms=2),
        cancels={"k_proj.bias": "k_proj.weight"},
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("padded", [0, 2])
@pytest.mark.parametrize("length", [3, WINDOW + 1, 13])
def test_whole_attention(length: int, padded: int, rng) -> None:
    """Shorter than the window, as long, and longer."""
    compare(Windowed(HEAD_DIM, WINDOW), length, padded)


def test_within_the_window_it_is_shaw_s(rng) -> None:
    compare(ShawEmbedding(HEAD_DIM, WINDOW), WINDOW + 1)


def test_beyond_the_window_it_adds_nothing_where_shaw_clips(rng) -> None:
    with pytest.raises(AssertionError, match=r"output \(float64\).*exceeds the budget"):
        compare(ShawEmbedding(HEAD_DIM, WINDOW), WINDOW + 2)
