"""transformers 5.23: the attention of Swin, Swin V2, BEiT, SAM and LayoutLMv3 beside ours.

`relative_position_bias_table` of Swin and BEiT is `GridBias.bias` as it stands, BEiT's with extra=3; Swin V2's
`continuous_position_bias_mlp` is `LogGridBias.function.mlp`. SAM's `rel_pos_h` and `rel_pos_w` are `RelativeEmbedding`s
on "y" and "x" with their rows reversed, unscaled. LayoutLMv3's weights are `T5Bias.bias` on the sequence, on "x" and on
"y", divided by the square root of the head's width.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from transformers import BeitConfig, LayoutLMv3Config, SamVisionConfig, SwinConfig, Swinv2Config
from transformers.models.beit.modeling_beit import BeitAttention, BeitRelativePositionBias
from transformers.models.layoutlmv3.modeling_layoutlmv3 import LayoutLMv3Encoder, LayoutLMv3SelfAttention
from transformers.models.sam.modeling_sam import SamVisionAttention
from transformers.models.swin.modeling_swin import SwinAttention, SwinRelativePositionBias
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

from relattn import (
    GridBias,
    GridEmbedding,
    LogGridBias,
    RelativeEmbedding,
    RelativeEncoding,
    T5Bias,
    flex_score_mod,
    grid,
    relative_attention,
)
from tests.contract.axes import Unscaled
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, HEAD_DIM = 4, 2, 4
WIDTH = HEADS * HEAD_DIM
Arrays = dict[str, Tensor]
every_backend = pytest.mark.parametrize("backend", ["dense", "blocks"])


class Attention(nn.Module):
    """relative_attention with an encoding whose parameters a call gives."""

    def __init__(self, encoding: RelativeEncoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **keywords) -> Tensor:
        return relative_attention(q, k, v, encoding=self.encoding, **keywords)


def attend(encoding: RelativeEncoding, tables: Arrays, q: Tensor, k: Tensor, v: Tensor, **keywords) -> Tensor:
    """[B, L, width], with these parameters."""
    given = {f"encoding.{name}": table for name, table in tables.items()}
    return functional_call(Attention(encoding), given, (q, k, v), keywords).transpose(1, 2).flatten(2)


def heads(x: Tensor, a: Arrays, name: str) -> Tensor:
    """A projection, head by head."""
    return F.linear(x, a[f"{name}.weight"], a.get(f"{name}.bias")).unflatten(-1, (HEADS, -1)).transpose(1, 2)


def on_grid(*sizes: int, prefix_tokens: int = 0) -> dict:
    where = grid(*sizes, prefix_tokens=prefix_tokens)
    return {"query_position": where, "key_position": where}


def linears(*names: str, bias: bool = True, without: str = "") -> Arrays:
    found = {f"{name}.weight": torch.randn(WIDTH, WIDTH) / 2 for name in names}
    return found | {f"{name}.bias": torch.randn(WIDTH) for name in names if bias and name != without}


def parameters_of(a: Arrays) -> Arrays:
    return {name: array for name, array in a.items() if name != "x"}


def terms(length: int, more: int = 0) -> int:
    return longest_sum(B, length, length, WIDTH, HEAD_DIM, relative_terms=2) + more


def compare(
    ours: Callable, theirs: Callable, arrays: Arrays, length: int, cancels: dict[str, str], more: int = 0
) -> None:
    assert_same_numbers(ours, theirs, arrays, terms(length, more), cancels=cancels)


# --- Swin


@pytest.mark.one_in(2)
@every_backend
@pytest.mark.parametrize("shifted", [False, True])
def test_swin(backend: str, shifted: bool) -> None:
    size = 3
    length = size * size
    a = linears("q_proj", "k_proj", "v_proj", "o_proj") | {"x": torch.randn(B, length, WIDTH)}
    table = "relative_position_bias.relative_position_bias_table"
    a[table] = torch.randn((2 * size - 1) ** 2, HEADS)
    hidden = torch.where(torch.rand(2, length, length) < 0.3, -100.0, 0.0) if shifted else None

    def theirs(a: Arrays) -> Tensor:
        config = SwinConfig(attn_implementation="eager")
        module = SwinAttention(config, WIDTH, HEADS, size).eval()
        mask = None if hidden is None else hidden.to(a["x"].dtype)
        return functional_call(module, parameters_of(a), (a["x"], mask))[0]

    def ours(a: Arrays) -> Tensor:
        q, k, v = (heads(a["x"], a, f"{one}_proj") for one in "qkv")
        mask = None if hidden is None else hidden.to(q.dtype).repeat(B // 2, 1, 1).unsqueeze(1)
        encoding = GridBias((size, size), HEADS)
        output = attend(encoding, {"bias": a[table]}, q, k, v, attn_mask=mask, backend=backend, **on_grid(size, size))
        return F.linear(output, a["o_proj.weight"], a["o_proj.bias"])

    compare(ours, theirs, a, length, {"k_proj.bias": "k_proj.weight"})


@pytest.mark.parametrize("sizes", [(2, 3), (4, 1), (1, 5)], ids=str)
def test_swin_s_table_of_any_window(sizes: tuple[int, int]) -> None:
    """Pair by pair: what is added to the scores."""
    module = SwinRelativePositionBias(HEADS, sizes).double()
    nn.init.normal_(module.relative_position_bias_table)
    encoding = GridBias(sizes, HEADS).double()
    encoding.bias.data.copy_(module.relative_position_bias_table)
    assert torch.equal(pair_by_pair(encoding, on_grid(*sizes), math.prod(sizes)), module()[0])


def pair_by_pair(encoding: RelativeEncoding, places: dict, length: int) -> Tensor:
    """What a bias adds to each pair, [H, L, L]."""
    q = torch.zeros(1, HEADS, length, HEAD_DIM, dtype=torch.float64)
    score_mod = flex_score_mod(encoding, q, q, **places)
    h, i, j = torch.meshgrid(torch.arange(HEADS), torch.arange(length), torch.arange(length), indexing="ij")
    return score_mod(torch.zeros((), dtype=torch.float64), torch.zeros_like(h), h, i, j)


# --- Swin V2


@pytest.mark.one_in(4)
@every_backend
@pytest.mark.parametrize(("sizes", "pretrained"), [((3, 3), (0, 0)), ((2, 3), (4, 5))], ids=str)
def test_swin_v2(backend: str, sizes: tuple[int, int], pretrained: tuple[int, int]) -> None:
    length, hidden = math.prod(sizes), 512
    a = linears("query", "key", "value", without="key") | {"x": torch.randn(B, length, WIDTH)}
    mlp = "continuous_position_bias_mlp."
    a |= {f"{mlp}0.weight": torch.randn(hidden, 2), f"{mlp}0.bias": torch.randn(hidden)}
    a |= {f"{mlp}2.weight": torch.randn(HEADS, hidden) / 16, "logit_scale": torch.randn(HEADS, 1, 1)}

    def theirs(a: Arrays) -> Tensor:
        module = Swinv2SelfAttention(Swinv2Config(), WIDTH, HEADS, sizes, pretrained).eval()
        return functional_call(module, parameters_of(a), (a["x"],))[0]

    def ours(a: Arrays) -> Tensor:
        q, k, v = (heads(a["x"], a, one) for one in ("query", "key", "value"))
        q = F.normalize(q, dim=-1) * a["logit_scale"].clamp(max=math.log(100.0)).exp()
        encoding = LogGridBias(sizes, HEADS, pretrained_sizes=pretrained if pretrained[0] else None)
        tables = {name.replace(mlp, "function.mlp."): array for name, array in a.items() if name.startswith(mlp)}
        return attend(encoding, tables, q, F.normalize(k, dim=-1), v, scale=1.0, backend=backend, **on_grid(*sizes))

    compare(ours, theirs, a, length, {}, more=2 * hidden)


# --- BEiT


def beit_table(sizes: tuple[int, int]) -> Tensor:
    return torch.randn((2 * sizes[0] - 1) * (2 * sizes[1] - 1) + 3, HEADS)


@every_backend
def test_beit(backend: str) -> None:
    sizes = (3, 3)
    length = 1 + math.prod(sizes)
    a = linears("q_proj", "k_proj", "v_proj", "o_proj", without="k_proj") | {"x": torch.randn(B, length, WIDTH)}
    a["relative_position_bias_table"] = beit_table(sizes)

    def theirs(a: Arrays) -> Tensor:
        config = BeitConfig(
            hidden_size=WIDTH, num_attention_heads=HEADS, image_size=sizes[0] * 2, patch_size=2,
            attn_implementation="eager",
        )  # fmt: skip
        table = {"relative_position_bias_table": a["relative_position_bias_table"]}
        bias = functional_call(BeitRelativePositionBias(config), table, (sizes,))
        weights = {name: array for name, array in parameters_of(a).items() if name not in table}
        return functional_call(BeitAttention(config).eval(), weights, (a["x"], bias))[0]

    def ours(a: Arrays) -> Tensor:
        q, k, v = (heads(a["x"], a, f"{one}_proj") for one in "qkv")
        table = {"bias": a["relative_position_bias_table"]}
        output = attend(
            GridBias(sizes, HEADS, extra=3), table, q, k, v, backend=backend, **on_grid(*sizes, prefix_tokens=1)
        )
        return F.linear(output, a["o_proj.weight"], a["o_proj.bias"])

    compare(ours, theirs, a, length, {})


@pytest.mark.parametrize(("before", "after"), [((3, 3), (4, 5)), ((3, 3), (2, 2)), ((4, 4), (6, 3))], ids=str)
def test_beit_s_tables_of_another_grid(before: tuple[int, int], after: tuple[int, int]) -> None:
    """A square table to any grid, bilinear: equal to it up to the order of additions."""
    config = BeitConfig(num_attention_heads=HEADS, image_size=(before[0] * 2, before[1] * 2), patch_size=2)
    module = BeitRelativePositionBias(config).double()
    encoding = GridBias(before, HEADS, extra=3).double()
    with torch.no_grad():
        encoding.bias.copy_(beit_table(before))
        module.relative_position_bias_table.copy_(encoding.bias)
    resized = encoding.resized(after, interpolation="bilinear")
    found = pair_by_pair(resized, on_grid(*after, prefix_tokens=1), 1 + math.prod(after))
    torch.testing.assert_close(found, module(after)[0], rtol=0.0, atol=1e-13)


# --- SAM


@pytest.mark.one_in(2)
@every_backend
@pytest.mark.parametrize("sizes", [(3, 3), (2, 4)], ids=str)
def test_sam(backend: str, sizes: tuple[int, int]) -> None:
    length = math.prod(sizes)
    a = {"qkv.weight": torch.randn(3 * WIDTH, WIDTH) / 2, "qkv.bias": torch.randn(3 * WIDTH)}
    a |= linears("proj") | {"x": torch.randn(B, *sizes, WIDTH)}
    a |= {f"rel_pos_{one}": torch.randn(2 * size - 1, HEAD_DIM) for one, size in zip("hw", sizes, strict=True)}

    def theirs(a: Arrays) -> Tensor:
        config = SamVisionConfig(hidden_size=WIDTH, num_attention_heads=HEADS)
        module = SamVisionAttention(config, window_size=3).eval()
        return functional_call(module, parameters_of(a), (a["x"],))[0]

    def ours(a: Arrays) -> Tensor:
        qkv = F.linear(a["x"].flatten(1, 2), a["qkv.weight"], a["qkv.bias"])
        q, k, v = qkv.unflatten(-1, (3, HEADS, HEAD_DIM)).permute(2, 0, 3, 1, 4).unbind(0)
        y, x = (Unscaled(RelativeEmbedding(HEAD_DIM, size), HEAD_DIM**-0.5) for size in sizes)
        tables = {
            f"operands.{n}.encoding.table.relative_keys": a[f"rel_pos_{one}"].flip(0)[None]
            for n, one in enumerate("hw")
        }
        output = attend(y.on("y") + x.on("x"), tables, q, k, v, backend=backend, **on_grid(*sizes))
        return F.linear(output, a["proj.weight"], a["proj.bias"]).unflatten(1, sizes)

    compare(ours, theirs, a, length, {})


# --- LayoutLMv3


@every_backend
def test_layoutlm_v3(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tables are looked up under no_grad, which is lifted here: so their gradients are compared too."""
    length = 12
    config = LayoutLMv3Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=1, rel_pos_bins=8, max_rel_pos=6,
        rel_2d_pos_bins=16, max_rel_2d_pos=40,
    )  # fmt: skip
    boxes = torch.randint(0, 60, (B, length, 4))
    ids = torch.arange(length).expand(B, -1)
    a = linears("query", "key", "value") | {"x": torch.randn(B, length, WIDTH)}
    a |= {f"rel_pos{one}_bias.weight": torch.randn(HEADS, 16 if one else 8) for one in ("", "_x", "_y")}

    def theirs(a: Arrays) -> Tensor:
        encoder = LayoutLMv3Encoder(config).eval()
        for one in ("", "_x", "_y"):
            layer = getattr(encoder, f"rel_pos{one}_bias")
            del layer.weight
            layer.weight = a[f"rel_pos{one}_bias.weight"]
        with monkeypatch.context() as patch:
            patch.setattr(torch, "no_grad", nullcontext)
            if hasattr(encoder, "_compute_position_bias"):  # from transformers 5.24 on
                biases = {"position_bias": encoder._compute_position_bias(ids, boxes)}
            else:
                biases = {"rel_pos": encoder._cal_1d_pos_emb(ids), "rel_2d_pos": encoder._cal_2d_pos_emb(boxes)}
        weights = {name: array for name, array in parameters_of(a).items() if not name.startswith("rel_")}
        module = LayoutLMv3SelfAttention(config).eval()
        return functional_call(module, weights, (a["x"], None), biases)[0]

    def ours(a: Arrays) -> Tensor:
        q, k, v = (heads(a["x"], a, one) for one in ("query", "key", "value"))
        sequence = T5Bias(HEADS, num_buckets=8, max_distance=6)
        x, y = (T5Bias(HEADS, num_buckets=16, max_distance=40).on(axis) for axis in ("x", "y"))
        names = {"operands.0.bias": "", "operands.1.encoding.bias": "_x", "operands.2.encoding.bias": "_y"}
        tables = {name: a[f"rel_pos{one}_bias.weight"].t() / HEAD_DIM**0.5 for name, one in names.items()}
        where = {"x": boxes[:, :, 0], "y": boxes[:, :, 3]}
        return attend(sequence + x + y, tables, q, k, v, query_position=where, key_position=where, backend=backend)

    compare(ours, theirs, a, length, {"key.bias": "key.weight"})


# --- other grids


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("before", "after"), [((3, 3), (5, 5)), ((3, 4), (5, 2)), ((2, 6), (7, 6))], ids=str)
def test_resized_is_torch_s_interpolation(before: tuple[int, int], after: tuple[int, int], mode: str) -> None:
    """Of the table as a picture: what timm does, of GridEmbedding feature by feature; a class token's rows stay."""
    old, new = ([2 * size - 1 for size in sizes] for sizes in (before, after))

    def expected(rows: Tensor) -> Tensor:
        picture = rows.t().reshape(1, -1, *old)
        return F.interpolate(picture, size=new, mode=mode, align_corners=False).flatten(2)[0].t()

    bias = GridBias(before, HEADS, extra=3).double()
    resized = bias.resized(after, interpolation=mode)
    rows = math.prod(old)
    torch.testing.assert_close(resized.bias[:-3], expected(bias.bias[:rows]), rtol=0.0, atol=1e-15)
    assert torch.equal(resized.bias[-3:], bias.bias[-3:])
    embedding = GridEmbedding(HEAD_DIM, before, num_heads=HEADS).double()
    found = embedding.resized(after, interpolation=mode).relative_keys
    for head in range(HEADS):
        torch.testing.assert_close(found[head], expected(embedding.relative_keys[head]), rtol=0.0, atol=1e-14)


def test_resized_to_the_same_grid_is_the_same() -> None:
    encoding = GridBias((3, 4), HEADS, extra=3)
    assert torch.equal(encoding.resized((3, 4)).bias, encoding.bias)
    frozen = encoding.requires_grad_(False).resized((5, 4))
    assert not frozen.bias.requires_grad and frozen.sizes == (5, 4) and frozen.bias.dtype == encoding.bias.dtype
