"""What only a GPU shows: memory linear in the length, capture by CUDA graphs, tile sizes that are timed once.

The bounds stand before any measurement: they follow from shapes, or are the promise itself.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import AlibiBias, RelativeEmbedding, RelativeEncoding, ShawEmbedding, explain, relative_attention
from relattn.backends.triton.host import autotune, ready
from tests import seeds
from tests.contract.cases import CASES
from tests.contract.check import by_formula, check
from tests.contract.settings import Setting
from tests.contract.subject import make_subject

pytest_plugins = ["tests.contract.fresh"]
pytestmark = pytest.mark.gpu

BATCH, HEADS, WIDTH = 2, 4, 64


def inputs(length: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Query, key and value."""
    shape = (BATCH, HEADS, length, WIDTH)
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]


def step(tensors: list[Tensor], encoding: RelativeEncoding, **asked: object) -> tuple[Tensor, ...]:
    """Output and gradients of a training step."""
    output = relative_attention(*tensors, encoding=encoding, backend="triton", **asked)
    leaves = [*tensors, *encoding.parameters()]
    return (output.detach(), *torch.autograd.grad(output, leaves, torch.ones_like(output)))


ENCODINGS = {
    "relative": lambda length: RelativeEmbedding(WIDTH, length, num_heads=HEADS),
    "shaw": lambda length: ShawEmbedding(WIDTH, 16),
    "alibi": lambda length: AlibiBias(HEADS),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_memory_is_linear_in_the_length(name: str) -> None:
    """Beyond inputs, at 8192: at most 12 tensors like the query in float32 and as many like a per-head table.

    Output, three gradients, delta and lse, edge sums, partial sums, and contiguous or float32 copies of each make up
    fewer.
    """
    length = 8192
    tensors, encoding = inputs(length), ENCODINGS[name](length).to("cuda", torch.bfloat16)
    step(tensors, encoding)  # times its tile sizes, which allocates
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    returned = step(tensors, encoding)
    peak = torch.cuda.max_memory_allocated() - before
    row = 4 * WIDTH * HEADS
    allowed = 12 * (BATCH * length * row + 2 * length * row)
    assert peak <= allowed, f"{peak / 2**20:.0f} MiB, allowed {allowed / 2**20:.0f}"
    assert allowed < 2 * BATCH * HEADS * length**2, "less than one bfloat16 number for every pair"
    assert all(tensor.isfinite().all() for tensor in returned)


@pytest.mark.parametrize("length", [200, 1100], ids=["small", "of timed sizes"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_cuda_graph_captures_a_training_step(name: str, length: int) -> None:
    """Replayed on new numbers it gives what a call gives."""
    tensors, encoding = inputs(length), ENCODINGS[name](length).to("cuda", torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(tensors, encoding, is_causal=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(tensors, encoding, is_causal=True)
    with torch.no_grad():
        for tensor in tensors:
            tensor.normal_()
    graph.replay()
    hold_to_another_run(captured, step(tensors, encoding, is_causal=True))


def hold_to_another_run(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """The output bit by bit; gradients, which are added in another order each time, to one place of a bfloat16."""
    assert torch.equal(found[0], expected[0])
    for gradient, other in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(gradient, other, rtol=2.0**-7, atol=1e-3)


def test_a_replayed_graph_drops_other_weights() -> None:
    """The seed is drawn from the generator inside of the graph."""
    query, key, value = inputs(64)
    with torch.no_grad():
        relative_attention(query, key, value, dropout_p=0.5, backend="triton")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = relative_attention(query, key, value, dropout_p=0.5, backend="triton")
        graph.replay()
        first = output.clone()
        graph.replay()
    assert not torch.equal(first, output)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_call_runs_where_its_tensors_lie() -> None:
    """On the second GPU while the first one is the current one, with the same numbers."""
    answers = []
    for device in ("cuda:0", "cuda:1"):
        seeds.start_torch(0)
        tensors = [tensor.detach().to(device).requires_grad_() for tensor in inputs(200)]
        encoding = ShawEmbedding(WIDTH, 16).to(device, torch.bfloat16)
        answers.append([tensor.to("cpu") for tensor in step(tensors, encoding)])
    hold_to_another_run(*answers)


def test_a_first_call_does_not_take_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing compiled before: compiling and timing sizes, forward and backward, in under a minute."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    start = time.perf_counter()
    tensors = [torch.randn(1, 2, 1024, 72, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    step(tensors, ShawEmbedding(72, 16).to("cuda", torch.bfloat16))
    torch.cuda.synchronize()
    assert time.perf_counter() - start < 60.0
    assert list(tmp_path.rglob("*.sizes.json")), "sizes were timed"


TRAINING_STEP = """
import hashlib, sys, torch, relattn
from relattn.backends.triton.host import autotune

timed, clock = [], autotune._timed
autotune._timed = lambda run: timed.append(1) or clock(run)
torch.use_deterministic_algorithms(sys.argv[1] == "deterministic")
torch.manual_seed(int(sys.argv[2]))
tensors = [torch.randn(2, 4, 1500, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
encoding = relattn.ShawEmbedding(64, 16).to("cuda", torch.bfloat16)
output = relattn.relative_attention(*tensors, encoding=encoding, is_causal=True, backend="triton")
found = torch.autograd.grad(output, [*tensors, *encoding.parameters()], torch.ones_like(output))
same = [output, *found] if sys.argv[1] == "deterministic" else [output]
bits = [tensor.detach().view(torch.int16).cpu().numpy().tobytes() for tensor in same]
print(len(timed), hashlib.sha256(b"".join(bits)).hexdigest())
"""


def run_a_step(mode: str, cache: Path) -> tuple[int, str]:
    """In a process of its own: how many sizes it timed, and a hash of the output's bits, and of those of every gradient
    where their order is fixed.
    """
    deterministic_cublas = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # PyTorch's deterministic mode asks for it
    environment = {**os.environ, **deterministic_cublas, "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", TRAINING_STEP, mode, str(seeds.seed("a training step"))]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    timed, bits = run.stdout.split()
    return int(timed), bits


def test_a_later_process_times_nothing_and_has_the_same_bits(tmp_path: Path) -> None:
    timed, bits = run_a_step("timed", tmp_path)
    assert timed > 0
    assert run_a_step("timed", tmp_path) == (0, bits)


def test_a_deterministic_process_times_nothing_whatever_the_disk_holds(tmp_path: Path) -> None:
    timed, bits = run_a_step("deterministic", tmp_path)
    assert timed == 0
    run_a_step("timed", tmp_path)
    assert run_a_step("deterministic", tmp_path) == (0, bits)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("place", [0, 1], ids=["first sizes", "second sizes"])
@pytest.mark.parametrize("widths", [(24, 24), (24, 64), (64, 24), (40, 40), (64, 64), (128, 128)])
@pytest.mark.parametrize("name", ["none", "relative", "relative_per_head", "shaw", "key_query", "t5", "terms_all"])
def test_every_size_that_this_gpu_is_given(
    name: str,
    widths: tuple[int, int],
    place: int,
    dtype: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over some of its largest tiles, output, lse and every gradient."""
    given = autotune.tile_configs
    monkeypatch.setattr(autotune, "tile_configs", lambda *asked: given(*asked)[-1 if place else 0 :][:1])
    monkeypatch.setattr(ready, "remembered", {})
    monkeypatch.setattr(autotune, "_first", {})
    setting = Setting(2, 4, 2, 300, 310, *widths, seed=int(rng.integers(2**32)))
    check(
        make_subject(CASES[name], setting, dtype, rng.choice(("float32", None))),
        "triton",
        dtype,
        truth=by_formula,
        device="cuda",
    )


@pytest.mark.parametrize("backend", ["dense", "blocks"])
@pytest.mark.parametrize("name", ["relative_per_head", "shaw", "t5", "terms_all"])
def test_the_other_backends_are_bit_equal_from_run_to_run(name: str, backend: str, rng: np.random.Generator) -> None:
    setting = Setting(2, 4, 2, 300, 310, 16, 16, seed=int(rng.integers(2**32)))
    subject = make_subject(CASES[name], setting, "float32").on("cuda")
    runs = []
    for _ in range(2):
        answers = subject.run(backend)
        weights = [torch.ones_like(answer).cumsum(-1) for answer in answers]
        runs.append((*answers, *torch.autograd.grad(answers, list(subject.arrays.values()), weights)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_auto_prefers_triton() -> None:
    """After PyTorch's own kernels, where these suffice; and goes on where triton cannot."""
    tensors, encoding = inputs(64, torch.float32), ShawEmbedding(WIDTH, 4).cuda()
    assert explain(*tensors).chosen == "sdpa"
    assert explain(*tensors, encoding=encoding).chosen == "triton"
    double = explain(*(tensor.double() for tensor in tensors), encoding=encoding.double())
    assert double.chosen in ("dense", "blocks")
    assert double.others["triton"] == ["it computes in float32, and query is float64"]
