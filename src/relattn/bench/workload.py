"""What is measured: a shape, an encoding, and what is done with it; and the tensors that make it concrete."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import relattn
from relattn.catalogue import CATALOGUE, Layer

FORWARD, TRAINING, DECODING = "forward", "training", "decoding"
MODES = {FORWARD: "forward", TRAINING: "training step", DECODING: "decoding one token"}
"""What may be measured, and how tables and pictures call it."""
ROOM = 64
"""How many more positions a decoder's cache has room for."""
SEED = 0
TRAINING_FLOPS = 3.5
"""Matrix products of a training step over those of a forward pass, with the scores recomputed: 2 and 5."""

ENCODINGS = ("none", "relative", "relative-heads", "shaw-keys", "shaw", "t5", "alibi", "transformer-xl", "rope")
"""Names of the catalogue, with its own options: a relative table reaches over the whole length, Shaw's clips at 16."""


@dataclass(frozen=True)
class Workload:
    """Self-attention: query, key and value [batch, heads, length, head_dim] under one encoding.

    mode: "forward", a forward pass without gradients. "training", a forward pass and the gradients of query, key, value
    and every parameter of the encoding. "decoding", a forward pass of the last query alone, [batch, heads, 1,
    head_dim], over all keys and values as a cache holds them; causal. dtype: a torch dtype's name. device: "cpu" or
    "cuda".
    """

    encoding: str
    length: int
    head_dim: int
    heads: int
    causal: bool
    mode: str
    dtype: str = "float32"
    device: str = "cpu"
    batch: int = 1

    @property
    def training(self) -> bool:
        """Whether gradients are computed."""
        return self.mode == TRAINING

    @property
    def decoding(self) -> bool:
        """Whether one query meets a cache."""
        return self.mode == DECODING

    @property
    def query_length(self) -> int:
        """How many queries there are."""
        return 1 if self.decoding else self.length

    @property
    def flops(self) -> float:
        """4 B H L^2 D multiplications and additions of attention without encoding; half when causal; 3.5x to train.

        4 B H L D for one query.
        """
        products = 4.0 * self.batch * self.heads * self.query_length * self.length * self.head_dim
        return products * (0.5 if self.causal and not self.decoding else 1.0) * (TRAINING_FLOPS if self.training else 1)

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
        return f"{self.encoding}{', causal' if self.causal else ''}, {self.shape}"

    @property
    def shape(self) -> str:
        """Batch, heads and width, in words."""
        return f"B={self.batch}, H={self.heads}, D={self.head_dim}"

    @property
    def family_name(self) -> str:
        """Everything but the length, in words."""
        direction = "causal" if self.causal else "both directions"
        return f"{self.encoding}, {direction}, {MODES[self.mode]}, {self.shape}, {self.dtype}"


@dataclass(frozen=True)
class Case:
    """A workload with its tensors: query, key, value, the gradient that arrives at the output, and the encoding.

    Decoding: keys and values are parts of a longer buffer, as a cache that has room gives them, and keys are prepared.
    """

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
    query_shape = (workload.batch, workload.heads, workload.query_length, workload.head_dim)
    held = workload.length + (ROOM if workload.decoding else 0)
    key_shape = (workload.batch, workload.heads, held, workload.head_dim)
    dtype = getattr(torch, workload.dtype)

    def normal(shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, device=workload.device, dtype=dtype)

    query, key, value = (
        normal(shape)[:, :, : workload.length].requires_grad_(workload.training)
        for shape in (query_shape, key_shape, key_shape)
    )
    layer = Layer(workload.heads, workload.head_dim, workload.length, workload.causal)
    encoding = CATALOGUE[workload.encoding].build(layer)
    if encoding is not None:
        encoding = encoding.to(workload.device, dtype)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.copy_(normal(parameter.shape) * workload.head_dim**-0.5)
    return Case(workload, query, key, value, normal(query_shape), encoding)


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
