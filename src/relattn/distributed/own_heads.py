"""OwnHeads: an encoding on a process that computes some of its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from relattn.encodings.base import RelativeEncoding

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class OwnHeads:
    """The `rank`-th `count` heads of an encoding, for one of `world` processes: an encoding's `split`.

    count: None where the heads share everything in the encoding.
    """

    world: int
    rank: int
    count: int | None

    def own(self, encoding: RelativeEncoding) -> RelativeEncoding:
        """A copy of the encoding for one call, with these heads. Its parameters are ordinary tensors.

        The gradient of a parameter that the heads share is summed over the processes whenever it is computed.
        """
        own = _with_ordinary_tensors(encoding)
        if self.count is not None:
            own.keep_heads(self.rank * self.count, self.count)
        return own


def _with_ordinary_tensors(module: Module) -> Module:
    """A copy of a module and of its children, with ordinary tensors in place of DTensors. All else is the same."""
    copied = object.__new__(type(module))
    copied.__dict__.update(module.__dict__)
    parameters = {name: None if one is None else _ordinary(one) for name, one in module._parameters.items()}
    children = {name: None if one is None else _with_ordinary_tensors(one) for name, one in module._modules.items()}
    copied.__dict__.update(_parameters=parameters, _modules=children)
    return copied


def _ordinary(tensor: Tensor) -> Tensor:
    """This process's part of a DTensor. Where all have the same, their gradients are summed on the way back."""
    if not isinstance(tensor, DTensor):
        return tensor
    gradients = tuple(Partial() if placement.is_replicate() else placement for placement in tensor.placements)
    return tensor.redistribute(placements=tensor.placements).to_local(grad_placements=gradients)
