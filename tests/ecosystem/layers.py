"""What every test here shares: a module with any encoding and backend, its inputs, and which few of all are quick."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from relattn import RelativeEncoding
from relattn.nn import RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from tests.contract.calls import MODULES, self_attention
from tests.contract.subject import Subject

WIDTH = 6
"""Even, as sinusoids ask; no multiple of the four heads that most encodings have here."""
LONGEST = 24
LENGTHS = [(12, 20), (13, 13), (19, 7), (LONGEST, LONGEST)]
"""Of queries and keys; PyTorch takes two lengths that start equal for one."""

FEW = ("music_transformer", "txl+shaw+t5", "rope+alibi")
"""Between them they have every kind of table, rewriting and bias."""
ONE = "txl+shaw+t5"
"""What tests that compile run among the fast ones."""

KINDS = (*FEW, "shaw_per_head", "clamp+zero", "disentangled", "function")
"""Between them they have every kind of edge and of rows too."""
CLASSES = (*KINDS, "key_query", "kerple_power", "sandwich", "alibi_learned", "rope_dynamic", "rope_longrope")
"""Every class of encodings; of rotations those that read the length."""

BACKENDS = ("dense", "blocks")
every_encoding = pytest.mark.parametrize("name", MODULES)
every_kind = pytest.mark.parametrize("name", KINDS)
few_encodings = pytest.mark.parametrize("name", FEW)
every_backend = pytest.mark.parametrize("backend", BACKENDS)
OTHER_NUMBERS = {
    "alibi_6_heads": "alibi_3_heads",
    "alibi_given_learned_signed": "alibi_learned, alibi_signed",
    "rope_dynamic_below": "rope_dynamic, rope_interleaved",
    "rope_longrope_below": "rope_longrope, rope_partial",
    "rope_other_base": "rope",
    "rope_yarn_partial": "rope_yarn, rope_partial",
    "rope_yarn_rotations": "rope_yarn, rope_llama3",
    "shaw_asymmetric": "shaw",
    "key_query+shaw": "disentangled+key_query+t5, kerple+function+shaw",
    "t5+alibi": "disentangled+key_query+t5, kerple+function+shaw",
}
"""Encodings that run no code but that of others, with other numbers, and which these are."""
TRACED = [name for name in MODULES if name not in OTHER_NUMBERS]
"""What tests that trace take, for seconds each."""
every_traced_encoding = pytest.mark.parametrize("name", TRACED)


def slow_but_one(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[] if name == ONE else pytest.mark.slow) for name in names]
    )


every_traced_encoding_slowly = slow_but_one(TRACED)
one_kind_quickly = slow_but_one(KINDS)
one_class_quickly = slow_but_one(CLASSES)


class Attention(nn.Module):
    """A layer with everything but its inputs fixed; float64 unless changed."""

    def __init__(self, layer: RelativeMultiheadAttention | RelPositionMultiHeadedAttention, **fixed: Any):
        super().__init__()
        self.layer, self.fixed = layer.double(), fixed

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        key_mask: Tensor | None = None,
        key_bias: Tensor | None = None,
        sinks: Tensor | None = None,
        **more: Tensor,
    ) -> Tensor:
        return self.layer(query, key, key_mask=key_mask, key_bias=key_bias, sinks=sinks, **self.fixed, **more)


def axisless(queries: int, keys: int) -> dict[str, Tensor]:
    """A key bias and sinks for two batch elements under four heads; softcap is a number."""
    return {
        "key_bias": torch.randn(2, 1, keys, dtype=torch.float64).cumsum(-1),
        "sinks": torch.randn(2, 4, queries, dtype=torch.float64),
    }


def attention(name: str, rng: np.random.Generator, backend: str = "dense", **options: Any) -> Attention:
    """A module with the encoding of that name, random everywhere."""
    return attention_of(self_attention(name, rng, length=LONGEST), backend, **options)


def attention_of(subject: Subject, backend: str, *, fixed: dict[str, Any] | None = None, **options: Any) -> Attention:
    """A module with the subject's encoding; causal where the encoding insists on it."""
    setting, encoding = subject.setting, subject.encoding()
    assert isinstance(encoding, RelativeEncoding)
    layer = RelativeMultiheadAttention(
        WIDTH, setting.num_heads, encoding, num_kv_heads=setting.num_kv_heads, head_dim=setting.head_dim,
        backend=backend, **options,
    )  # fmt: skip
    return Attention(layer, **{"is_causal": setting.is_causal, **(fixed or {})})


def inputs(*lengths: int, batch: int = 2, dtype: torch.dtype = torch.float64, grad: bool = False) -> list[Tensor]:
    """Fresh features of these lengths."""
    return [torch.randn(batch, length, WIDTH, dtype=dtype, requires_grad=grad) for length in lengths]
