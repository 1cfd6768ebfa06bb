"""What is measured: a shape, an encoding, and forward or training step; and the tensors that make it concrete."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import relattn

BATCH = 1
SHAW_DISTANCE = 16
SEED = 0
TRAINING_FLOPS = 3.5
"""Matrix products of a training step over those of a forward pass, with the scores recomputed: 2 and 5."""

ENCODINGS: dict[str, Callable[[Workload], relattn.RelativeEncoding | None]] = {
    "none": lambda work: None,
    "relative": lambda work: relattn.RelativeEmbedding(work.head_dim, work.length, causal=work.causal),
    "shaw-keys": lambda work: relattn.ShawEmbedding(work.head_dim, SHAW_DISTANCE, values=False),
    "shaw": lambda work: relattn.ShawEmbedding(work.head_dim, SHAW_DISTANCE),
    "t5": lambda work: relattn.T5Bias(work.heads, bidirectional=not work.causal),
    "alibi": lambda work: relattn.AlibiBias(work.heads),
    "transformer-xl": lambda work: relattn.TransformerXLEmbedding(work.heads, work.head_dim),
}
"""Encodings by name: an unclipped table, Shaw's keys, keys and values clipped at 16, T5, ALiBi, Transformer-XL."""


@dataclass(frozen=True)
class Workload:
    """Self-attention of one sequence: query, key and value [1, heads, length, head_dim] under one encoding.

    training: a forward pass and the gradients of query, key, value and every parameter of the encoding; otherwise a
    forward pass without gradients. dtype: a torch dtype's name. device: "cpu" or "cuda".
    """

    encoding: str
    length: int
    head_dim: int
    heads: int
    causal: bool
    training: bool
    dtype: str = "float32"
    device: str = "cpu"

    @property
    def flops(self) -> float:
        """4 B H L^2 D multiplications and additions of attention without encoding; half when causal; 3.5x to train."""
        products = 4.0 * BATCH * self.heads * self.length**2 * self.head_dim
        return products * (0.5 if self.causal else 1.0) * (TRAINING_FLOPS if self.training else 1.0)

    @property
    def family(self) -> Workload:
        """What workloads that differ in length alone have in common: itself at length 1."""
        return replace(self, length=1)

    @property
    def without_encoding(self) -> Workload:
        """The same without encoding: what the floor computes."""
        return replace(self, encoding="none")

    def at(self, length: int) -> Workload:
        """The same at another length."""
        return replace(self, length=length)

    def __str__(self) -> str:
        return f"{self.family_name}, L={self.length}"

    @property
    def short_name(self) -> str:
        """Encoding, direction and shape, in words."""
        return f"{self.encoding}{', causal' if self.causal else ''}, H={self.heads}, D={self.head_dim}"

    @property
    def family_name(self) -> str:
        """Everything but the length, in words."""
        direction = "causal" if self.causal else "both directions"
        mode = "training step" if self.training else "forward"
        return f"{self.encoding}, {direction}, {mode}, H={self.heads}, D={self.head_dim}, {self.dtype}"


@dataclass(frozen=True)
class Case:
    """A workload with its tensors: query, key, value, the gradient that arrives at the output, and the encoding."""

    workload: Workload
    query: Tensor
    key: Tensor
    value: Tensor
    upstream: Tensor
    encoding: relattn.RelativeEncoding | None

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors whose gradients a training step computes, by name."""
        own = {} if self.encoding is None else dict(self.encoding.named_parameters())
        return {"query": self.query, "key": self.key, "value": self.value} | own

    def doubled(self, relative_change: float = 0.0) -> Case:
        """The same numbers in float64, each moved up or down, at random, by `relative_change` of itself."""
        generator = torch.Generator(self.query.device).manual_seed(SEED + 1)

        def moved(tensor: Tensor) -> Tensor:
            signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device) * 2 - 1
            return tensor.detach().double() * (1.0 + relative_change * signs)

        query, key, value = (
            moved(t).requires_grad_(self.workload.training) for t in (self.query, self.key, self.value)
        )
        encoding = copy.deepcopy(self.encoding)
        if encoding is not None:
            encoding = encoding.double()
            with torch.no_grad():
                for parameter in encoding.parameters():
                    parameter.copy_(moved(parameter))
        return Case(replace(self.workload, dtype="float64"), query, key, value, moved(self.upstream), encoding)


def make_case(workload: Workload) -> Case:
    """The workload's tensors from N(0, 1), the encoding's parameters from N(0, 1 / head_dim); always the same ones."""
    generator = torch.Generator(workload.device).manual_seed(SEED)
    shape = (BATCH, workload.heads, workload.length, workload.head_dim)
    dtype = getattr(torch, workload.dtype)

    def normal(shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, device=workload.device, dtype=dtype)

    query, key, value = (normal(shape).requires_grad_(workload.training) for _ in range(3))
    encoding = ENCODINGS[workload.encoding](workload)
    if encoding is not None:
        encoding = encoding.to(workload.device, dtype)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(normal(parameter.shape) * workload.head_dim**-0.5)
    return Case(workload, query, key, value, normal(shape), encoding)


def step(case: Case, call: Callable[[], Tensor]) -> dict[str, Tensor]:
    """One forward pass or training step of `call`: its output, and where it trains every leaf's gradient, by name."""
    if not case.workload.training:
        with torch.no_grad():
            return {"output": call()}
    output = call()
    leaves = case.leaves
    gradients = torch.autograd.grad(output, list(leaves.values()), case.upstream)
    return {"output": output.detach()} | {
        f"gradient of {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)
    }
