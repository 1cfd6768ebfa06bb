"""What the dtypes of sums, gaps and limits must not change."""

from __future__ import annotations

import pytest
import torch

from relattn import AlibiBias, OffsetTable, RelativeEmbedding, T5Bias, attention_and_lse, explain, relative_attention
from relattn.equation.tables import add_tables, gather_rows
from relattn.positions.positions import Positions
from tests import seeds


def test_gradient_of_a_half_precision_look_up_is_summed_in_float32() -> None:
    values = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    gather_rows(values, torch.zeros(1000, dtype=torch.int64)).sum().backward()
    assert values.grad is not None
    assert values.grad.item() == 1000  # bfloat16 counts to 256 and stays there


def test_gradient_of_a_half_precision_t5_bias_with_many_offsets_a_bucket() -> None:
    query, key = torch.randn(1, 1, 600, 4).bfloat16(), torch.randn(1, 1, 600, 4).bfloat16()
    gradients = []
    for dtype in (torch.bfloat16, torch.float32):
        seeds.start_torch(0)
        encoding = T5Bias(1, num_buckets=4, max_distance=1024, bidirectional=False).bfloat16().to(dtype)
        _, lse = attention_and_lse(query, key, key, encoding=encoding, is_causal=True)
        lse.sum().backward()
        assert encoding.bias.grad is not None
        gradients.append(encoding.bias.grad.float())
    # The same numbers, rounded once to 8 bits: half a unit in the last place, and a little for the float32 sum.
    assert torch.all((gradients[0] - gradients[1]).abs() <= gradients[1].abs() * 2**-8)


def test_half_precision_tables_add_in_float32() -> None:
    one, little = (OffsetTable(torch.full((1, 1), x, dtype=torch.bfloat16), 0, "clamp") for x in (1.0, 2**-9))
    assert add_tables(one, little).values[0, 0].item() == 1.0 + 2**-9


@pytest.mark.parametrize("backend", ["dense", "reference"])
def test_nan_in_a_float_mask_is_not_hidden(backend: str) -> None:
    query = torch.randn(1, 1, 3, 4)
    mask = torch.zeros(3, 3)
    mask[1, 2] = float("nan")
    output = relative_attention(query, query, query, attn_mask=mask, backend=backend)
    assert output.isnan().any(-1).flatten().tolist() == [False, True, False]


def test_explicit_positions_are_not_read_for_a_table_that_clamps(monkeypatch: pytest.MonkeyPatch) -> None:
    query, position = torch.randn(1, 1, 4, 8), torch.tensor([0, 2, 5, 9])

    def read(self: Positions) -> tuple[int, int]:
        raise AssertionError("positions were read")

    monkeypatch.setattr(Positions, "_visible_explicit", read)
    encoding = RelativeEmbedding(8, 4, beyond="clamp")
    relative_attention(query, query, query, encoding=encoding, query_position=position, key_position=position)


def test_a_limit_that_hides_nothing_leaves_the_fused_kernel() -> None:
    query = torch.randn(1, 2, 10, 4)
    assert explain(query, query, query, is_causal=True, window=(1000, 0)).chosen == "sdpa"
    assert explain(query, query, query, is_causal=True, window=(8, 0)).chosen == "native"


def test_gaps_between_explicit_positions_are_bounded() -> None:
    query, position = torch.randn(1, 2, 2, 4), torch.tensor([0, 2**24])
    with pytest.raises(ValueError, match=r"query_position, key_position: offsets -16777216\.\.16777216 are visible"):
        relative_attention(query, query, query, encoding=AlibiBias(2), query_position=position, key_position=position)
