"""Styles: they tell `parallelize_module` how to put layers of attention on a mesh."""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from relattn.checks.values import check_choice, kind_of
from relattn.distributed.attention import context_parallel_attention
from relattn.distributed.choose import ROTATES, Rotate
from relattn.distributed.group import Group
from relattn.distributed.headwise import HeadwiseParallel
from relattn.distributed.parts import LAYOUTS, Layout
from relattn.nn.projected import ProjectedAttention


class ContextParallel(ParallelStyle):
    """A layer's attention becomes `context_parallel_attention`: its inputs, masks and output are the rank's part.

    For `parallelize_module`, over a RelativeMultiheadAttention or RelPositionMultiHeadedAttention. Its parameters do
    not change. They are the same on all ranks, and their gradients are those of the rank's part. DDP or FSDP over the
    mesh adds them up.

    mesh: the mesh along which sequences are split, with one dimension; None for the mesh of `parallelize_module`.
    layout, rotate: as in `context_parallel_attention`.

    Raises TypeError, UnsupportedError, ValueError: for a mesh, a layout or a way that `context_parallel_attention`
    refuses, and for a module of another kind.

    >>> parallelize_module(model, mesh, {"blocks.*.attention": ContextParallel()})
    """

    def __init__(
        self, mesh: DeviceMesh | None = None, *, layout: Layout = "zigzag", rotate: Rotate | Literal["auto"] = "auto"
    ) -> None:
        super().__init__()
        check_choice("layout", layout, LAYOUTS)
        check_choice("rotate", rotate, ("auto", *ROTATES))
        if mesh is not None:
            Group(mesh)  # it refuses anything but a mesh
        self.mesh = mesh
        self.layout: Layout = layout
        self.rotate: Rotate | Literal["auto"] = rotate

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, ProjectedAttention):
            raise TypeError(
                f"ContextParallel: got {kind_of(module)}; expected a RelativeMultiheadAttention; "
                "relattn.distributed.plan(model) names those of a model"
            )
        mesh = device_mesh if self.mesh is None else self.mesh
        Group(mesh)
        module.attend_parts = partial(context_parallel_attention, mesh=mesh, layout=self.layout, rotate=self.rotate)
        return module


def plan(model: nn.Module, style: ParallelStyle | None = None) -> dict[str, ParallelStyle]:
    """The style of every attention layer of a model, by its name, as `parallelize_module` takes it.

    model: any module that holds layers of attention.
    style: HeadwiseParallel() by default, or a ContextParallel.

    Raises ValueError: for a model without attention layers.

    >>> parallelize_module(model, mesh, plan(model))
    """
    chosen = HeadwiseParallel() if style is None else style
    names = [name for name, module in model.named_modules() if isinstance(module, ProjectedAttention)]
    if not names:
        raise ValueError(
            f"plan: got {kind_of(model)}, which has no RelativeMultiheadAttention; expected a model that has one"
        )
    return dict.fromkeys(names, chosen)
