"""A patched model makes no tensor of queries x keys in a training step, in its attention or beside it."""

from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import relattn.hf
from tests.peers.cases import CASES, made

LENGTH = 384
QUICK = ("t5", "deberta_v3", "wav2vec2_bert")
"""A bias, disentangled attention and relative keys."""


class Allocated(TorchDispatchMode):
    """The most bytes that lie behind any tensor an operation returns; a view counts as what it looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.most: tuple[int, str] = 0, "nothing"

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.most = max(self.most, (tensor.untyped_storage().nbytes(), str(function)))
        return result


def largest(name: str, length: int, patched: bool = True) -> tuple[int, str]:
    """(bytes, operation) of the largest tensor of one forward and backward pass over `length` tokens."""
    model = made(name, length)
    if patched:
        relattn.hf.patch(model, backend="blocks")
    inputs = CASES[name].inputs(length)
    with Allocated() as seen:
        CASES[name].output(model(**inputs), inputs).square().mean().backward()
    return seen.most


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_the_largest_tensor_grows_with_the_length(name: str) -> None:
    """Twice the tokens, at most twice the bytes: blocks of pairs have a size of their own."""
    (short, _), (long, where) = (largest(name, length) for length in (LENGTH, 2 * LENGTH))
    assert long <= 2.05 * short, f"{where}: {short} bytes at {LENGTH} tokens, {long} at {2 * LENGTH}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["t5", "deberta_v3", "seamless_m4t_v2_chunks"])
def test_what_is_quadratic_is_seen(name: str) -> None:
    """The originals."""
    (short, _), (long, _) = (largest(name, length, patched=False) for length in (256, 512))
    assert long >= 3.5 * short
