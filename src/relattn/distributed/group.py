"""Group: the ranks of a mesh that hold the parts of a sequence, and their messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from relattn.checks.values import kind_of
from relattn.equation.tables import wide
from relattn.errors import UnsupportedError

Messages = Sequence[tuple[int, Sequence[Tensor]]]
"""(how many ranks further round the ring, or from how many back, the tensors)."""


def check_dimensions(mesh: DeviceMesh, which: str, name: str) -> None:
    """Raises UnsupportedError: for a mesh of several dimensions; `which` it has, and how it may be called."""
    if mesh.ndim != 1:
        names = f" with the dimensions {', '.join(map(repr, mesh.mesh_dim_names))}" if mesh.mesh_dim_names else ""
        raise UnsupportedError(
            f"mesh: got {mesh.ndim} dimensions{names}; expected one, {which}; give a part of the mesh, as "
            f"mesh[{name!r}]"
        )


class Group:
    """The ranks along a mesh of one dimension.

    world: the number of ranks. rank: the number of this process. sent: the bytes that this process has sent to others
        through this object, without the small tensors by which the ranks agree.

    Raises TypeError: for anything but a DeviceMesh; UnsupportedError: for a mesh of several dimensions.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(
                f"mesh: got {kind_of(mesh)}; expected a DeviceMesh of one dimension; "
                "torch.distributed.device_mesh.init_device_mesh makes one"
            )
        check_dimensions(mesh, "that along which sequences are split", "context")
        self.process_group = mesh.get_group()
        self.rank, self.world = mesh.get_local_rank(), mesh.size()
        self.ranks = dist.get_process_group_ranks(self.process_group)
        self.device = torch.device(mesh.device_type)
        self.sent = 0

    def all_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank; every rank gives equally many."""
        own = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        of_ranks = own.new_empty(self.world, len(numbers))
        with self.named():
            dist.all_gather(list(of_ranks), own, group=self.process_group)
        return of_ranks.tolist()

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every rank, differentiable: a rank gets the gradient of its tensor, summed over the ranks."""
        return list(_Gather.apply(self, tensor).unbind(0))  # pyright: ignore[reportAttributeAccessIssue]

    def exchanged(self, parts: Tensor) -> Tensor:
        """[world, ...]: part i goes to rank i, and the answer's part i comes from rank i; differentiable."""
        return _Exchange.apply(self, parts)  # pyright: ignore[reportReturnType]

    def pass_on(self, sent: Messages, places: Messages) -> Passing:
        """Send each message to the rank so much further round the ring. `places` are filled from as far back."""
        sent = [(hop, [tensor.contiguous() for tensor in tensors]) for hop, tensors in sent]
        operations = []
        for do, sign, messages in ((dist.isend, 1, sent), (dist.irecv, -1, places)):
            for hop, tensors in messages:
                peer = self.ranks[(self.rank + sign * hop) % self.world]
                operations += [dist.P2POp(do, tensor, peer, self.process_group) for tensor in tensors]
        self.sent += sum(tensor.nbytes for _, tensors in sent for tensor in tensors)
        with self.named():
            return Passing(self, sent, places, dist.batch_isend_irecv(operations) if operations else [])

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Names the waiting rank where a message between ranks fails.

        Raises RuntimeError: in place of the group's own.
        """
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(
                f"relattn.distributed: rank {self.rank} of {self.world} waited for the others, who did not answer; "
                "one of the processes has ended, or is behind by more than the group's timeout: see what it printed; "
                f"the group says: {str(error).splitlines()[0]}"
            ) from error


class Passing:
    """Messages on their way: those that are sent, and those that arrive at their places."""

    def __init__(self, group: Group, sent: Messages, places: Messages, works: list[dist.Work]) -> None:
        self.group, self.sent, self.places, self.works = group, sent, places, works

    def wait(self) -> list[list[Tensor]]:
        """What has arrived, after all of it has and all of ours is sent."""
        with self.group.named():
            for work in self.works:
                work.wait()
        self.sent = []
        return [list(tensors) for _, tensors in self.places]


class _Gather(torch.autograd.Function):
    """[...] of every rank as [world, ...]; backward: the sum over the ranks of their parts for this one."""

    @staticmethod
    def forward(ctx, group: Group, tensor: Tensor) -> Tensor:
        ctx.group = group
        plain = tensor.contiguous().to(torch.uint8 if tensor.dtype == torch.bool else tensor.dtype)
        received = plain.new_empty(group.world, *plain.shape)
        with group.named():
            dist.all_gather(list(received), plain, group=group.process_group)
        group.sent += plain.nbytes * (group.world - 1)
        return received.to(tensor.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        parts = ctx.group.exchanged(gradient)
        return None, wide(parts).sum(0).to(parts.dtype)


class _Exchange(torch.autograd.Function):
    """Part i of [world, ...] goes to rank i; backward: the same in the other direction."""

    @staticmethod
    def forward(ctx, group: Group, parts: Tensor) -> Tensor:
        ctx.group = group
        sent = parts.contiguous()
        received = torch.empty_like(sent)
        with group.named():
            dist.all_to_all_single(received, sent, group=group.process_group)
        group.sent += sent.nbytes * (group.world - 1) // group.world
        return received

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, ctx.group.exchanged(gradient)
