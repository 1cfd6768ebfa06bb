"""RETURNN's frontend modules as functions of torch tensors: for test_returnn.py."""

from collections.abc import Callable
from typing import Any

import returnn.frontend as rf
import torch
from returnn.tensor import Dim, single_step_dim
from torch import Tensor


class Module:
    """One of its self-attention modules with these parameters: x [B, L, inner] -> [B, L, heads * width]."""

    def __init__(
        self, kind: type[rf.Module], heads: int, width: int, options: dict[str, Any], a: dict[str, Tensor]
    ) -> None:
        batch, _, inner = a["x"].shape
        self.batch, self.inner = Dim(batch, name="batch"), Dim(inner, name="inner")
        keys, self.values = Dim(heads * width, name="keys"), Dim(heads * width, name="values")
        sizes = {"key_dim_total": keys, "value_dim_total": self.values, "num_heads": heads}
        rf.reset_step_random_state()  # its own, of the first values that `a` replaces
        self.module = kind(self.inner, None, **sizes, att_dropout=0.0, **options)
        for name, parameter in self.module.named_parameters():
            parameter.raw_tensor = a[name]

    def whole(self, x: Tensor, lengths: list[int] | None = None) -> Tensor:
        """All of it without a state; lengths: of the sequences, padded on the right."""
        time = Dim(x.shape[1] if lengths is None else self._sizes(lengths), name="time")
        output = self.module(self._wrap(x, time), axis=time)
        return self._unwrap(output[0] if isinstance(output, tuple) else output, time)

    def stream(self, x: Tensor, chunks: list[int]) -> Tensor:
        """Chunk by chunk through a state; a chunk of 1 is a single step, as RETURNN decodes."""
        outputs = []
        state = self.module.default_initial_state(batch_dims=[self.batch])
        for chunk in x.split(chunks, dim=1):
            if chunk.shape[1] == 1:
                output, state = self.module(self._wrap(chunk[:, 0]), axis=single_step_dim, state=state)
                outputs.append(self._unwrap(output).unsqueeze(1))
            else:
                time = Dim(chunk.shape[1], name="chunk")
                output, state = self.module(self._wrap(chunk, time), axis=time, state=state)
                outputs.append(self._unwrap(output, time))
        return torch.cat(outputs, dim=1)

    def _wrap(self, x: Tensor, *time: Dim) -> rf.Tensor:
        dims = [self.batch, *time, self.inner]
        return rf.Tensor("x", dims=dims, dtype=dtype_name(x), raw_tensor=x.contiguous(), feature_dim=self.inner)

    def _unwrap(self, output: rf.Tensor, *time: Dim) -> Tensor:
        return output.copy_compatible_to_dims([self.batch, *time, self.values]).raw_tensor

    def _sizes(self, lengths: list[int]) -> rf.Tensor:
        raw = torch.tensor(lengths, dtype=torch.int32)
        return rf.Tensor("sizes", dims=[self.batch], dtype="int32", raw_tensor=raw)


def dtype_name(x: Tensor) -> str:
    """As RETURNN calls it."""
    return str(x.dtype).removeprefix("torch.")


def function_of(
    kind: type[rf.Module], heads: int, width: int, options: dict[str, Any], run: Callable[[Module, Tensor], Tensor]
) -> Callable[[dict[str, Tensor]], Tensor]:
    """A function of "x" and the parameters: the module that they make, as `run` calls it, in their dtype."""

    def function(a: dict[str, Tensor]) -> Tensor:
        rf.select_backend_torch()
        with rf.set_default_float_dtype_ctx(dtype_name(a["x"])):
            return run(Module(kind, heads, width, options, a), a["x"])

    return function
