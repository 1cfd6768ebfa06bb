"""float16 keys and values, which few queries read where they lie."""

import math

import numpy as np
import pytest
import torch

from relattn import relative_attention
from relattn.backends.cpu import operator
from tests.contract.cases import CASES
from tests.contract.check import by_formula
from tests.contract.settings import Setting
from tests.contract.subject import make_subject
from tests.native.passes import check
from tests.native.sets import every_set

pytestmark = pytest.mark.pairs


@every_set
@pytest.mark.parametrize("width", [64, 40])
def test_every_number(width: int, instructions: str) -> None:
    """A weight of 1 gives a value back: every normal and subnormal number, infinities and NaN."""
    numbers = torch.arange(2**16).to(torch.int16).view(torch.float16)
    batch = math.ceil(2**16 / width)
    values = torch.cat([numbers, numbers.new_zeros(batch * width - 2**16)]).view(batch, 1, 1, width)
    query = key = torch.ones(batch, 1, 1, 16, dtype=torch.float16)
    torch.testing.assert_close(
        relative_attention(query, key, values, backend="native"), values, rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.one_in(6)
@every_set
@pytest.mark.parametrize("widths", [(64, 64), (40, 24), (5, 3)], ids=str)
@pytest.mark.parametrize("name", ["relative", "shaw_asymmetric", "terms_all"])
def test_few_queries(name: str, widths: tuple[int, int], instructions: str, rng: np.random.Generator) -> None:
    """Chunks of keys, whole and not, under two queries of two heads that share keys."""
    setting = Setting(2, 4, 2, 2, 600, *widths, is_causal=True, query_position=500, seed=int(rng.integers(2**32)))
    check(make_subject(CASES[name], setting, "float16"), "native", "float16", truth=by_formula)


def test_a_cache_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels get the addresses of the keys and values that the caller holds."""
    query, key, value = (torch.randn(1, 2, length, 16, dtype=torch.float16) for length in (1, 300, 300))
    given, packed = [], operator.packed
    monkeypatch.setattr(
        operator, "packed", lambda problem, inputs, *rest: given.append(inputs) or packed(problem, inputs, *rest)
    )
    relative_attention(query, key, value, query_position=299, backend="native")
    (inputs,) = given
    assert (inputs.key.data_ptr(), inputs.value.data_ptr()) == (key.data_ptr(), value.data_ptr())
