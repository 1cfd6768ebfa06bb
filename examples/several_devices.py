"""One model on several processes: its sequences split, its heads split, its parameters sharded, or all three.

Two layers of attention with Shaw's embedding and T5's bias take three steps of AdamW, and one process takes the same
steps on the whole. The parameters must be the same in the end, up to rounding.

    torchrun --nproc-per-node 2 examples/several_devices.py --context 2      a sequence in two parts
    torchrun --nproc-per-node 2 examples/several_devices.py --heads 2        half of the heads each
    torchrun --nproc-per-node 4 examples/several_devices.py --context 2 --heads 2
    torchrun --nproc-per-node 2 examples/several_devices.py                  two halves of the batch, FSDP2 alone
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import relattn
from relattn.distributed import ContextParallel, HeadwiseParallel, plan, split

WIDTH, HEADS, LENGTH, BATCH, STEPS = 32, 4, 64, 4, 3


class Model(nn.Module):
    """x + attention(x), twice, causal."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            relattn.nn.RelativeMultiheadAttention(
                WIDTH, HEADS, relattn.ShawEmbedding(WIDTH // HEADS, 8) + relattn.T5Bias(HEADS), num_kv_heads=2
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, is_causal=True)
        return x


def train(model: nn.Module, x: Tensor, target: Tensor, share: float) -> None:
    """Steps on the mean square; this process has a part of it. share: the factor of its sum."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ((model(x) - target).square().sum() * share).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=1, help="parts that a sequence is split into")
    parser.add_argument("--heads", type=int, default=1, help="parts that the heads are split into")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    copies = dist.get_world_size() // arguments.heads
    sizes = copies // arguments.context, arguments.context, arguments.heads
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("data", "context", "heads"))

    generator = torch.Generator().manual_seed(1)
    x, target = (torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64, generator=generator) for _ in range(2))
    alone = Model().double()
    train(alone, x, target, share=1.0 / x.numel())

    model = Model().double()
    if arguments.heads > 1:
        parallelize_module(model, mesh["heads"], plan(model, HeadwiseParallel()))
    if arguments.context > 1:
        parallelize_module(model, mesh["context"], plan(model, ContextParallel()))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["data", "context"]._flatten("copies"))
    data = mesh["data"]
    own = slice(data.get_local_rank(), None, data.size())
    parts = (split(tensor[own], mesh["context"], dim=1) for tensor in (x, target))
    train(model, *parts, share=copies / x.numel())  # FSDP takes the mean over the copies

    worst = 0.0
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        worst = max(worst, (whole - expected).abs().max().item())
    if dist.get_rank() == 0:
        said = f"{sizes[0]} x data, {sizes[1]} x context, {sizes[2]} x heads"
        print(f"{said}: after {STEPS} steps the parameters are those of one process, within {worst:.0e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
