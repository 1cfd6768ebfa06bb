"""Sums of encodings as modules: they ask their operands as these are now."""

import torch
from torch import Tensor

from relattn import AlibiBias, RelativeEmbedding, RelativeEncoding, RotaryEmbedding, ScoreTerms, T5Bias
from relattn import relative_attention as attention
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.places import Places
from relattn.positions.positions import Positions

HEADS, LENGTH, WIDTH = 2, 6, 8


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(1, HEADS, LENGTH, WIDTH, dtype=torch.float64) for _ in range(3))
    return query, key, value


class Wrapper(RelativeEncoding):
    """Another encoding's terms and keys."""

    def __init__(self, encoding: RelativeEncoding) -> None:
        super().__init__()
        self.encoding = encoding

    @property
    def rewrites_keys(self) -> bool:
        return self.encoding.rewrites_keys

    def prepare_keys(self, key: Tensor, key_position: object) -> Tensor:
        return self.encoding.prepare_keys(key, key_position)  # pyright: ignore[reportArgumentType]

    def terms(self, query: Tensor, key: Tensor, positions: Positions) -> ScoreTerms:
        return self.encoding.terms(query, key, positions)


def test_an_operand_that_is_replaced() -> None:
    """By one that turns the keys, as tools replace modules."""
    tensors, t5 = drawn(), T5Bias(HEADS).double()
    changed = AlibiBias(HEADS) + t5
    changed.operands[0] = RotaryEmbedding(WIDTH)
    assert torch.equal(attention(*tensors, encoding=changed), attention(*tensors, encoding=RotaryEmbedding(WIDTH) + t5))


def test_an_encoding_says_itself_whether_it_rewrites_keys() -> None:
    tensors, alibi, rotary = drawn(), AlibiBias(HEADS), RotaryEmbedding(WIDTH)
    expected = attention(*tensors, encoding=rotary + alibi)
    assert torch.equal(attention(*tensors, encoding=rotary + Wrapper(alibi)), expected)
    assert torch.equal(attention(*tensors, encoding=Wrapper(rotary) + alibi), expected)


def test_terms_of_a_sum_on_several_axes() -> None:
    """The sequence keeps its own offsets and its limit."""
    query, key, _ = drawn()
    start, place = ContiguousPositions(0), ExplicitPositions(torch.arange(LENGTH) * 10)
    sequence = Positions(start, start, LENGTH, LENGTH, query.device, None, 0)
    places = Places(sequence, {"x": Positions(place, place, LENGTH, LENGTH, query.device, axis="x")})
    total = AlibiBias(HEADS) + RelativeEmbedding(WIDTH, 51).double().on("x")
    bias = total.terms(query, key, places.apart(total.axes, "the sum")).bias
    expected = AlibiBias(HEADS).terms(query, key, sequence).bias
    assert bias is not None and expected is not None
    assert bias.first == expected.first and torch.equal(bias.values, expected.values)
