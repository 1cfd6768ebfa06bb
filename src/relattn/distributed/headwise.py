"""HeadwiseParallel: layers of attention and encodings whose heads are split over the processes of a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from relattn.checks.values import kind_of
from relattn.distributed.group import check_dimensions
from relattn.encodings.base import EncodingSum, OnAxis, RelativeEncoding
from relattn.equation.problem import Part
from relattn.errors import UnsupportedError
from relattn.nn.attention import RelativeMultiheadAttention
from relattn.nn.conformer import RelPositionMultiHeadedAttention

Module = TypeVar("Module", bound=nn.Module)
PROJECTIONS: dict[str, type[ParallelStyle]] = {
    "q_proj": ColwiseParallel,
    "k_proj": ColwiseParallel,
    "v_proj": ColwiseParallel,
    "out_proj": RowwiseParallel,
}
"""How each projection of a layer is split: by its rows or by its columns, whichever belong to heads."""


class HeadwiseParallel(ParallelStyle):
    """Every process computes num_heads / N heads; inputs and outputs of a layer are whole, the same on all processes.

    For `parallelize_module`, over a RelativeMultiheadAttention: q_proj, k_proj and v_proj are split by their rows,
    out_proj by its columns, and the encoding with them. Or over a single encoding, which then gets queries of the
    process's own heads.

    Parameters become DTensors under the same names. They are split along the axis that counts heads (`head_axes`), and
    whole on every process if the heads share them. Each gradient is that of all heads. An encoding that several layers
    share is split once. Masks, key_bias and sinks with an axis of heads must have the process's own heads. Dropout of
    `native`, `blocks` and `triton` drops the same weights as one process whose generator has the same state: seed all
    processes with the same number.

    The mesh has one dimension, whose size N divides num_heads and num_kv_heads.

    Raises TypeError: over another module; UnsupportedError: for a mesh of several dimensions, and for parameters that
    are already split; ValueError: for heads that N does not divide.

    >>> parallelize_module(model, mesh, {"blocks.*.attention": HeadwiseParallel()})
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        check_dimensions(device_mesh, "over which the heads are split", "heads")
        if isinstance(module, RelativeEncoding):
            self._split_encoding(module, device_mesh)
        elif isinstance(module, RelativeMultiheadAttention):
            self._split_layer(module, device_mesh)
        else:
            way_out = "relattn.distributed.plan(model) names the layers of a model"
            if isinstance(module, RelPositionMultiHeadedAttention):
                way_out = "one with TransformerXLEmbedding(..., interleaved=True) has the same equation and weights"
            raise TypeError(
                f"HeadwiseParallel: got {kind_of(module)}; expected a RelativeMultiheadAttention or a "
                f"RelativeEncoding; {way_out}"
            )
        return module

    def _split_layer(self, layer: RelativeMultiheadAttention, mesh: DeviceMesh) -> None:
        _check_divides("num_heads", layer.num_heads, mesh)
        _check_divides("num_kv_heads", layer.num_kv_heads, mesh)
        for name in PROJECTIONS:
            _check_whole(type(layer).__name__, layer.get_submodule(name), prefix=name)
        if layer.encoding is not None:
            self._split_encoding(layer.encoding, mesh)
        count = layer.num_heads // mesh.size()
        layer.own_heads = Part(0, 0, mesh.get_local_rank() * count, layer.num_heads)
        for name, style in PROJECTIONS.items():
            parallelize_module(layer.get_submodule(name), mesh, style(), **self._source())

    def _split_encoding(self, encoding: RelativeEncoding, mesh: DeviceMesh) -> None:
        parts = encoding.encodings if isinstance(encoding, EncodingSum) else [encoding]
        splits = [_split_of(part, mesh) for part in parts]
        for part, split in zip(parts, splits, strict=True):
            bearer = _bearer(part)
            if bearer.split is None:
                self._split_parameters(bearer, mesh)
            bearer.split = part.split = split

    def _split_parameters(self, encoding: RelativeEncoding, mesh: DeviceMesh) -> None:
        has_heads = _num_heads(encoding) is not None
        parts: dict[nn.Parameter, nn.Parameter] = {}  # a module with two names is still one module
        for name, parameter in list(encoding.named_parameters(remove_duplicate=False)):
            if parameter not in parts:
                axis = encoding.head_axes.get(name) if has_heads else None
                placement = Replicate() if axis is None else Shard(axis)
                spread = distribute_tensor(parameter.detach(), mesh, [placement], **self._source())
                parts[parameter] = nn.Parameter(spread, parameter.requires_grad)
            owner, _, short = name.rpartition(".")
            encoding.get_submodule(owner).register_parameter(short, parts[parameter])

    def _source(self) -> dict[str, Any]:
        """The process whose numbers all take, as `parallelize_module` names it; torch 2.6 always takes the first."""
        return {"src_data_rank": self.src_data_rank} if hasattr(self, "src_data_rank") else {}


def _split_of(part: RelativeEncoding, mesh: DeviceMesh) -> OwnHeads:
    """The heads of this process, for an encoding that is not a sum.

    Raises UnsupportedError: where it was split over another mesh, or by other code; ValueError: for heads that the mesh
    does not divide.
    """
    heads, bearer = _num_heads(part), _bearer(part)
    name = type(bearer).__name__
    if heads is not None:
        _check_divides(f"{name} num_heads", heads, mesh)
    count = None if heads is None else heads // mesh.size()
    split = OwnHeads(mesh.size(), mesh.get_local_rank(), count)
    if bearer.split is None:
        _check_whole(name, bearer)
    elif bearer.split != split:
        raise UnsupportedError(
            f"HeadwiseParallel: got a {name} that another mesh has split; expected the same mesh for all layers that "
            "share an encoding"
        )
    return split


def _bearer(part: RelativeEncoding) -> RelativeEncoding:
    """The encoding that has the parameters, on any axis."""
    return part.encoding if isinstance(part, OnAxis) else part


def _num_heads(part: RelativeEncoding) -> int | None:
    """The number of heads for which it has numbers; None where all heads share them, as a table of one head."""
    heads = getattr(_bearer(part), "num_heads", None)
    return None if heads == 1 else heads


def _check_divides(name: str, heads: int, mesh: DeviceMesh) -> None:
    if heads % mesh.size():
        raise ValueError(
            f"{name}: got {heads} on a mesh of {mesh.size()} processes; expected a multiple of {mesh.size()}, as many "
            "heads for each; take a smaller mesh"
        )


def _check_whole(name: str, module: nn.Module, prefix: str = "") -> None:
    """No parameter is a DTensor; `name` and `prefix`: what the message calls the module, and its parameters."""
    for parameter_name, parameter in module.named_parameters(prefix=prefix):
        if isinstance(parameter, DTensor):
            raise UnsupportedError(
                f"HeadwiseParallel: got a {name} whose {parameter_name} is a DTensor already; expected ordinary "
                "parameters; split the heads first, and once, and call fully_shard afterwards"
            )


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
