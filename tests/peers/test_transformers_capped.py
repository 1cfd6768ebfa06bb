"""transformers 5.23: attention with a cap or with sinks, Gemma 2's, gpt-oss' and Inkling 2's, beside ours.

Gemma 2 caps its scores before it masks them; gpt-oss has a sink per head, a parameter; Inkling 2 one per token and
head, projected of the token, beside a bias that it makes of relative positions. Layers of the first two turn queries
and keys, within a window.
"""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import Gemma2Config, GptOssConfig, Inkling2TextConfig
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.inkling2 import modeling_inkling2 as inkling2

from relattn import RotaryEmbedding, relative_attention
from relattn.hf.interface import relattn_attention
from relattn.nn import RelativeMultiheadAttention
from tests.peers.compare import assert_same_numbers, everything_in_float64, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, LENGTH, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 2, 9, 4, 2, 6, 5
WIDTH = 8
CAP = 1.5
"""Scores of size one are well within the bend."""
COMMON = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
    "num_hidden_layers": 2, "sliding_window": WINDOW, "attention_bias": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip


def additive(window: int, dtype: torch.dtype) -> Tensor:
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    allowed = (distance >= 0) & (distance < window)
    return torch.zeros(1, 1, LENGTH, LENGTH, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def of_gemma2(a: dict[str, Tensor], backend: str = "eager") -> Tensor:
    config = Gemma2Config(**COMMON, query_pre_attn_scalar=7, attn_logit_softcapping=CAP, attn_implementation=backend)
    return layer(gemma2.Gemma2Attention(config, 0), gemma2.Gemma2RotaryEmbedding(config), a)


def of_gpt_oss(a: dict[str, Tensor], backend: str = "eager") -> Tensor:
    config = GptOssConfig(**COMMON, attn_implementation=backend)
    return layer(gpt_oss.GptOssAttention(config, 0), gpt_oss.GptOssRotaryEmbedding(config), a)


def layer(attention: nn.Module, rotary: nn.Module, a: dict[str, Tensor]) -> Tensor:
    """The layer, the first one of its model, whose window is `WINDOW`."""
    weights = {name: array for name, array in a.items() if name != "x"}
    angles = rotary(a["x"], torch.arange(LENGTH)[None])
    return functional_call(attention.eval(), weights, (a["x"], angles, additive(WINDOW, a["x"].dtype)))[0]


def ours(a: dict[str, Tensor], scale: float, backend: str = "auto", **more: float | Tensor) -> Tensor:
    module = RelativeMultiheadAttention(
        WIDTH, HEADS, RotaryEmbedding(HEAD_DIM), num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, scale=scale, backend=backend
    )
    weights = {name.replace("o_proj", "out_proj"): array for name, array in a.items() if name not in ("x", "sinks")}
    return functional_call(module, weights, (a["x"],), {"is_causal": True, "window": (WINDOW - 1, 0), **more})


def gemma2_ours(a: dict[str, Tensor], backend: str) -> Tensor:
    return ours(a, 7**-0.5, backend, softcap=CAP)


def gpt_oss_ours(a: dict[str, Tensor], backend: str) -> Tensor:
    return ours(a, HEAD_DIM**-0.5, backend, sinks=a["sinks"])


def arrays(sinks: bool) -> dict[str, Tensor]:
    shapes = {"q_proj": (HEADS * HEAD_DIM, WIDTH), "o_proj": (WIDTH, HEADS * HEAD_DIM)}
    shapes |= {name: (KV_HEADS * HEAD_DIM, WIDTH) for name in ("k_proj", "v_proj")}
    drawn = {f"{name}.weight": torch.randn(shape) / 2 for name, shape in shapes.items()}
    drawn |= {f"{name}.bias": torch.randn(shape[0]) / 2 for name, shape in shapes.items()}
    return {**drawn, "x": torch.randn(B, LENGTH, WIDTH), **({"sinks": torch.randn(HEADS)} if sinks else {})}


PEERS = {"Gemma 2": (of_gemma2, gemma2_ours, False), "gpt-oss": (of_gpt_oss, gpt_oss_ours, True)}
TERMS = longest_sum(B, LENGTH, LENGTH, WIDTH, HEAD_DIM)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", ["dense", "blocks"])
@pytest.mark.parametrize(("peer", "mine", "sinks"), PEERS.values(), ids=PEERS)
def test_whole_attention(
    peer: Callable[..., Tensor], mine: Callable[..., Tensor], sinks: bool, backend: str, rng: np.random.Generator
) -> None:
    assert_same_numbers(lambda a: mine(a, backend), peer, arrays(sinks), TERMS)


@pytest.mark.parametrize(("peer", "mine", "sinks"), PEERS.values(), ids=PEERS)
def test_their_own_layers_on_relattn(
    peer: Callable[..., Tensor], mine: Callable[..., Tensor], sinks: bool, rng: np.random.Generator
) -> None:
    """attn_implementation="relattn" hands over the cap, and the sinks."""

    def on_relattn(a: dict[str, Tensor]) -> Tensor:
        wide = a["x"].dtype == torch.float64
        with everything_in_float64() if wide else contextlib.nullcontext():  # their angles are float32
            return peer(a, "relattn")

    assert_same_numbers(on_relattn, peer, arrays(sinks), TERMS)


def inkling2_arrays() -> dict[str, Tensor]:
    shapes = {"query": (B, HEADS, LENGTH, HEAD_DIM), "sinks": (B, HEADS, LENGTH, 1)}
    shapes |= {name: (B, KV_HEADS, LENGTH, HEAD_DIM) for name in ("key", "value")}
    shapes |= {"position_bias": (B, HEADS, LENGTH, LENGTH)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def of_inkling2(a: dict[str, Tensor], attend: Callable[..., tuple[Tensor, Tensor | None]]) -> Tensor:
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = HEADS // KV_HEADS, True
    inputs, more = (a[name] for name in ("query", "key", "value")), {n: a[n] for n in ("position_bias", "sinks")}
    return attend(module, *inputs, additive(WINDOW, a["query"].dtype), scaling=HEAD_DIM**-0.5, **more)[0]


def inkling2_ours(a: dict[str, Tensor], backend: str) -> Tensor:
    return relative_attention(
        a["query"], a["key"], a["value"], a["position_bias"], is_causal=True, window=(WINDOW - 1, 0), enable_gqa=True,
        sinks=a["sinks"].squeeze(-1), backend=backend,
    ).transpose(1, 2)  # fmt: skip


@pytest.mark.parametrize("backend", ["dense", "blocks"])
def test_inkling2_s_attention(backend: str, rng: np.random.Generator) -> None:
    """By the function that both kinds of its layers call; the layers' own parts make its arguments."""
    assert hasattr(inkling2.Inkling2FullAttention(inkling2_config(), 1), "sink_proj")
    peer = inkling2.eager_attention_forward
    terms = longest_sum(B, LENGTH, LENGTH, 0, HEAD_DIM)
    assert_same_numbers(lambda a: inkling2_ours(a, backend), lambda a: of_inkling2(a, peer), inkling2_arrays(), terms)


def inkling2_config() -> Inkling2TextConfig:
    return Inkling2TextConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        num_hidden_layers=2,
    )  # fmt: skip


def test_inkling2_on_relattn(rng: np.random.Generator) -> None:
    terms = longest_sum(B, LENGTH, LENGTH, 0, HEAD_DIM)
    assert_same_numbers(
        lambda a: of_inkling2(a, relattn_attention), lambda a: of_inkling2(a, inkling2.eager_attention_forward),
        inkling2_arrays(), terms,
    )  # fmt: skip
