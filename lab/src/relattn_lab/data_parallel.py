"""Data parallelism: which windows of a batch a process works on, and which part of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from relattn.distributed import ContextParallel, plan, split
from relattn_lab.processes import Processes
from relattn_lab.windows import IGNORED


@dataclass(frozen=True)
class Part:
    """What a process holds of some windows: `input_ids` and `labels` [N, n], and where its columns stand in the
    windows, `positions` [n]. Columns that fill the windows up to what can be split have no label.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True)
class DataParallel:
    """A batch is shared among `groups` groups of processes; this process is in group `group`. Where `mesh` is not None,
    the processes of a group split each of their windows along its length, over `mesh`.
    """

    groups: int = 1
    group: int = 0
    mesh: DeviceMesh | None = None

    @classmethod
    def of(cls, processes: Processes, batch: int, context: int) -> DataParallel:
        """Of batches of so many windows, each split over `context` processes. All processes call it.

        Raises ValueError: where `context` does not divide the processes, or their groups do not divide the batch; as
        `Processes.on_main` does.
        """
        groups = processes.on_main(lambda: _groups(processes.count, batch, context))
        if context == 1:
            return cls(groups, processes.index)
        mesh = init_device_mesh(processes.device.type, (groups, context), mesh_dim_names=("data", "context"))
        return cls(groups, processes.index // context, mesh["context"])

    @property
    def context(self) -> int:
        """Over how many processes a window is split."""
        return 1 if self.mesh is None else self.mesh.size()

    @property
    def processes(self) -> int:
        """How many there are."""
        return self.groups * self.context

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sum of what all processes have."""
        if self.processes == 1:
            return numbers
        summed = numbers.detach().clone()
        dist.all_reduce(summed)
        return summed

    def all_of(self, holds: bool, device: torch.device) -> bool:
        """Whether it holds in every process."""
        return int(self.total(torch.tensor(int(holds), device=device))) == self.processes

    def lay(self, model: nn.Module) -> None:
        """Make the model's attention work on windows of which this process holds a part."""
        if self.mesh is not None:
            parallelize_module(model, self.mesh, plan(model, ContextParallel(self.mesh)))

    def rows(self, step: int, batch: int) -> list[int]:
        """This process's windows of step `step`, each of which takes `batch` windows one after another."""
        share = batch // self.groups
        first = step * batch + self.group * share
        return list(range(first, first + share))

    def part(self, windows: Mapping[str, np.ndarray]) -> Part:
        """This process's part of {"input_ids", "labels"}, int64 [N, L]."""
        input_ids, labels = (torch.as_tensor(windows[name]) for name in ("input_ids", "labels"))
        positions = torch.arange(input_ids.shape[-1])
        if self.mesh is not None:
            input_ids, positions = split(input_ids, self.mesh, dim=-1), split(positions, self.mesh, dim=0)
            labels = split(labels - IGNORED, self.mesh, dim=-1) + IGNORED  # so that IGNORED fills windows up
        return Part(input_ids, labels, positions)


ONE_PROCESS = DataParallel()
"""One process, which works on everything."""


def _groups(count: int, batch: int, context: int) -> int:
    """How many groups of `context` processes share a batch."""
    processes = "1 process" if count == 1 else f"{count} processes"
    if count % context:
        raise ValueError(
            f"context_parallel: got {context} for {processes}; expected a number that divides the processes; start "
            f"{context}, or a multiple, by `torchrun --nproc-per-node {context} -m relattn_lab compare ...`"
        )
    groups = count // context
    if batch % groups:
        raise ValueError(
            f"batch: got {batch} windows for {processes}, which divide them by {groups}; expected a number that "
            "divides the batch; start another number of processes"
        )
    return groups
