"""A process runs the kernels and forks; it and its child go on, and find the same bits: `forks.py THREADS`.

`test_forks` runs it, and stops it where it hangs.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from relattn import ShawEmbedding, attention_and_lse
from tests import seeds


class Steps(Dataset[list[Tensor]]):
    """Item n: the output, the lse and every gradient of problem n, and the output of its last query alone."""

    def __init__(self) -> None:
        seeds.start_torch("forks")
        self.encoding = ShawEmbedding(16, 5)
        self.inputs = torch.randn(3, 3, 1, 4, 600, 16)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, n: int) -> list[Tensor]:
        inputs = [one.clone().requires_grad_() for one in self.inputs[n]]
        asked = {"encoding": self.encoding, "backend": "native"}
        output, lse = attention_and_lse(*inputs, **asked)
        gradients = torch.autograd.grad(output.sin().sum() + lse.sum(), [*inputs, *self.encoding.parameters()])
        with torch.no_grad():
            last, _ = attention_and_lse(inputs[0][:, :, -1:], *inputs[1:], query_position=599, **asked)
        return [output.detach(), lse.detach(), *gradients, last]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    steps = Steps()
    expected = [steps[n] for n in range(len(steps))]
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        child = os.fork()
        if not child:
            try:
                if threads > 1:
                    torch.set_num_threads(1)
                torch.save([steps[n] for n in range(len(steps))], said)
            finally:
                os._exit(0 if said.exists() else 1)
        for n, before in enumerate(expected):
            assert_same(steps[n], before)
        assert os.waitpid(child, 0)[1] == 0
        for found, before in zip(torch.load(said), expected, strict=True):
            assert_same(found, before)
    loaded = DataLoader(steps, batch_size=None, num_workers=1, multiprocessing_context="fork")
    for n, found in enumerate(loaded):
        assert_same(found, expected[n])
        assert_same(steps[n], expected[n])
    assert torch.get_num_threads() == threads


if __name__ == "__main__":
    main(int(sys.argv[1]))
