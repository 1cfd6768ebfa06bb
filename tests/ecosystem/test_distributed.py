"""DDP and FSDP2 over two gloo processes: a step of training gives the weights that one process gives them."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests import seeds
from tests.contract.calls import EXACT, MODULES
from tests.ecosystem.layers import WIDTH, Attention, attention

PROCESSES = 2
SHARED = "t5, shared by two layers"
NAMES = (*MODULES, SHARED)
LENGTH = 9

Weights = dict[str, Tensor]


class Stack(nn.Module):
    """A layer twice, or two layers that share their encoding, with residual connections."""

    def __init__(self, name: str):
        super().__init__()
        seeds.start_torch(3)
        rng = seeds.generator(3)
        self.first = attention("t5" if name == SHARED else name, rng)
        self.second: Attention | None = None
        if name == SHARED:
            self.second = attention("t5", rng)
            self.second.layer.encoding = self.first.layer.encoding

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        return x + (self.first if self.second is None else self.second)(x)


def batch() -> Tensor:
    return torch.randn(2 * PROCESSES, LENGTH, WIDTH, dtype=torch.float64, generator=seeds.torch_generator(4))


def train(model: nn.Module, x: Tensor) -> None:
    """Two steps, so that the second starts from weights that were updated."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def replicated(stack: Stack, x: Tensor) -> Weights:
    train(DistributedDataParallel(stack), x)
    return stack.state_dict()


def sharded(stack: Stack, x: Tensor) -> Weights:
    """Each layer a unit of its own; an encoding that two layers share belongs to the unit of both."""
    if stack.second is None:
        fully_shard(stack.first)
    fully_shard(stack)
    train(stack, x)
    return {name: weight.full_tensor() for name, weight in stack.state_dict().items()}


STRATEGIES: dict[str, Callable[[Stack, Tensor], Weights]] = {"replicated": replicated, "sharded": sharded}


def work(rank: int, folder: Path) -> None:
    """One of the processes: every strategy and encoding, on its part of the batch; the first writes what came out."""
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES)
    part = batch().chunk(PROCESSES)[rank]
    found = {way: {name: train(Stack(name), part) for name in NAMES} for way, train in STRATEGIES.items()}
    if rank == 0:
        torch.save(found, folder / "weights")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_a_step_is_that_of_one_process(tmp_path: Path) -> None:
    """All strategies and encodings in one pair of processes, which take longer to start than to train."""
    torch.multiprocessing.spawn(work, (tmp_path,), PROCESSES)
    found = torch.load(tmp_path / "weights")
    assert list(found) == list(STRATEGIES)
    for name in NAMES:
        alone = Stack(name)
        before = {key: weight.clone() for key, weight in alone.state_dict().items()}
        train(alone, batch())
        for way, (key, weight) in product(STRATEGIES, alone.state_dict().items()):
            where = f"{way}: {name}: {key}"
            given = found[way][name][key]
            torch.testing.assert_close(given, weight, **EXACT, msg=lambda s: f"{where}: {s}")  # noqa: B023
            # The softmax does not see what all keys of a row have in common.
            trained = key.endswith(("k_proj.bias", "key_proj.bias")) or (weight - before[key]).abs().max() > 1e-8
            assert trained, f"{where} did not move"
