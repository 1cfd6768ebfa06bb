"""DDP and FSDP2 over two gloo processes: a step of training gives the weights that one process gives them.

The native kernels, which take no float64, are held to the same bits: one process that halves the sum of both parts'
gradients rounds as often as two that average theirs, and the kernels sum in an order that the shape fixes.
"""

import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

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


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def train(model: nn.Module, *parts: Tensor) -> list[Tensor]:
    """Two steps, so that the second starts from weights that were updated; gradients are the mean over the parts.

    What the model answered, part by part.
    """
    optimizer, answers = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(2):
        optimizer.zero_grad()
        for x in parts:
            answers.append(model(x))
            (answers[-1].square().mean() / len(parts)).backward()
        optimizer.step()
    return [answer.detach() for answer in answers]


def replicated(stack: Stack, x: Tensor) -> Weights:
    train(DistributedDataParallel(stack), x)
    return stack.state_dict()


def sharded(stack: Stack, x: Tensor) -> Weights:
    """Each layer a unit of its own; an encoding that two layers share belongs to the unit of both."""
    if stack.second is None:
        fully_shard(stack.first)
    fully_shard(stack)
    train(stack, x)
    return whole(stack)


def whole(model: nn.Module) -> Weights:
    return {name: weight.full_tensor() for name, weight in model.state_dict().items()}


STRATEGIES: dict[str, Callable[[Stack, Tensor], Weights]] = {"replicated": replicated, "sharded": sharded}


def start(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES)


def end() -> None:
    """At once: a thread of gloo that drops a tensor while Python ends would abort the process."""
    os._exit(0)


def work(rank: int, folder: Path) -> None:
    """One of the processes: every strategy and encoding, on its part of the batch; the first writes what came out."""
    start(rank, folder)
    part = batch().chunk(PROCESSES)[rank]
    found = {way: {name: train(Stack(name), part) for name in NAMES} for way, train in STRATEGIES.items()}
    if rank == 0:
        torch.save(found, folder / "weights")
    end()


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
            trained = (
                key.endswith(("k_proj.bias", "key_proj.bias", "function.last.bias"))
                or (weight - before[key]).abs().max() > 1e-8
            )
            assert trained, f"{where} did not move"


def native(name: str) -> nn.Sequential:
    """Two layers in a row: where a tensor or a layer served twice, what goes back would be summed in another order."""
    seeds.start_torch(3)
    rng = seeds.generator(3)
    return nn.Sequential(*(attention(name, rng, "native").float() for _ in range(2)))


def work_natively(rank: int, folder: Path) -> None:
    """One of the processes: every encoding, on its part of the batch. It writes what it answered and what came out."""
    start(rank, folder)
    part = batch().float().chunk(PROCESSES)[rank]
    torch.save({name: sharded(name, part) for name in MODULES}, folder / f"found {rank}")
    end()


def sharded(name: str, part: Tensor):
    """What an encoding's layers answer to a part of the batch under FSDP2, and what comes out of a step."""
    layers = native(name)
    for unit in (*layers, layers):
        fully_shard(unit)
    return train(layers, part), whole(layers)


@pytest.mark.slow
def test_native_kernels_sharded_give_the_bits_of_one_process(tmp_path: Path, one_thread: None) -> None:
    """Which halves the sum of both parts' gradients, where two average theirs: no number is rounded otherwise."""
    torch.multiprocessing.spawn(work_natively, (tmp_path,), PROCESSES)
    found = [torch.load(tmp_path / f"found {rank}") for rank in range(PROCESSES)]
    for name in MODULES:
        alone = native(name)
        answers = train(alone, *batch().float().chunk(PROCESSES))
        for rank in range(PROCESSES):
            given, weights = found[rank][name]
            assert_same_bits(name, dict(enumerate(given)), dict(enumerate(answers[rank::PROCESSES])))
            assert_same_bits(name, weights, alone.state_dict())


def assert_same_bits(name: str, found: dict[Any, Tensor], expected: dict[Any, Tensor]) -> None:
    assert list(found) == list(expected)
    for key, given in found.items():
        assert torch.equal(given, expected[key]), f"{name}: {key}"
