"""An installed wheel, in an environment with torch and nothing of the tests: its kernels run, and agree with dense."""

import copy
import math
import os
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

import relattn
from relattn.backends.cpu import library, operator


def main() -> None:
    installed = Path(relattn.__file__).parent
    assert installed == Path(sysconfig.get_path("purelib"), "relattn"), f"relattn was found in {installed}"
    assert library.has_threads(), "it does not find the threads of PyTorch"
    sources = [str(path) for path in installed.rglob("*") if path.suffix in (".h", ".cpp")]
    assert not sources, f"the wheel holds {sources}"
    for name in library.SETS:
        os.environ["RELATTN_NATIVE"] = name
        found = library.kernels.__wrapped__()
        if isinstance(found, str):
            print(found)
            continue
        operator.kernels = lambda found=found: found
        for length in (600, 1):
            agrees(length)
        print(f"{name}: attention and its gradients are those of dense")
    encoding = relattn.RelativeEmbedding(16, 2048, causal=True)
    inputs = [torch.randn(1, 4, 2048, 16) for _ in range(3)]
    assert relattn.explain(*inputs, is_causal=True, encoding=encoding).chosen == "native"


def agrees(queries: int) -> None:
    """`queries` at the end of 600 keys, beside dense in float64.

    A number may be off by c eps sqrt(n) of the largest, as in `tests/oracle/budget.py`. The longest sum is that of a
    table's row: the queries of 4 heads, and in each the sums of a row of weights and of two scores.
    """
    torch.manual_seed(queries)
    encoding = relattn.RelativeEmbedding(16, 600, causal=True)
    inputs = [torch.randn(1, 4, length, 16, requires_grad=True) for length in (queries, 600, 600)]
    ours, truth = answers(inputs, encoding, "native"), answers(*in_float64(inputs, encoding), "dense")
    most = 6.0 * torch.finfo(torch.float32).eps * math.sqrt(4 * queries + 600 + 2 * 32)
    for found, expected in zip(ours, truth, strict=True):
        off = (found - expected).abs().max() / expected.abs().max()
        assert off <= most, f"with {queries} queries it is off by {off:.2g} of the largest; expected {most:.2g} at most"


def in_float64(inputs: list[Tensor], encoding: nn.Module) -> tuple[list[Tensor], nn.Module]:
    return [tensor.detach().double().requires_grad_() for tensor in inputs], copy.deepcopy(encoding).double()


def answers(inputs: list[Tensor], encoding: nn.Module, backend: str) -> list[Tensor]:
    """The output, and the gradients of the sum of its squares."""
    asked = {"is_causal": True, "encoding": encoding, "query_position": 600 - inputs[0].shape[2]}
    output = relattn.relative_attention(*inputs, **asked, backend=backend)
    return [output, *torch.autograd.grad(output.square().sum(), [*inputs, *encoding.parameters()])]


if __name__ == "__main__":
    main()
