"""What context_parallel_attention refuses: one sentence on every rank, and no rank waits."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import relattn
from relattn.distributed import ContextParallel, context_parallel_attention, explain, join, plan, split, unpadded
from relattn.equation.terms import ScoreTerms
from tests.distributed.ranks import Ranks


def parts(length: int = 8, heads: int = 2, width: int = 4) -> list[torch.Tensor]:
    return [torch.ones(1, heads, length, width, requires_grad=True) for _ in range(3)]


def said(call: Any) -> str:
    """The error that a call ends with, by its class and text."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused(rank: int, world: int, case: str) -> str:
    mesh = init_device_mesh("cpu", (world,))
    q, k, v = parts()
    options: dict[str, Any] = {"mesh": mesh}
    if case == "no mesh":
        options["mesh"] = "cpu"
    if case == "two dimensions":
        options["mesh"] = init_device_mesh("cpu", (1, world), mesh_dim_names=("data", "context"))
    if case == "lengths":
        q, k, v = parts(8 + 2 * rank)
    if case == "odd":
        q, k, v = parts(7)
    if case == "layouts":
        options["layout"] = ("zigzag", "contiguous")[rank]
    if case == "encodings":
        options["encoding"] = relattn.RelativeEmbedding(4, 32)
        for parameter in options["encoding"].parameters():
            torch.nn.init.constant_(parameter, 1.0 + rank)
    if case == "one rank":
        options["key_mask"] = torch.ones(1, 8, dtype=torch.bool if rank else torch.float32)
    if case == "short table":
        options |= {
            "encoding": relattn.RelativeEmbedding(4, 10, causal=True),
            "is_causal": True,
            "layout": "contiguous",
        }
        for parameter in options["encoding"].parameters():
            torch.nn.init.ones_(parameter)
    if case == "heads":
        options["rotate"] = "ulysses"
        q, k, v = parts(heads=3)
    if case == "pairs":
        options |= {"rotate": "ulysses", "attn_mask": torch.ones(8, 8 * world, dtype=torch.bool)}
    if case == "dense":
        options |= {"rotate": "ring", "backend": "dense"}
    if case == "way":
        options["rotate"] = "tree"
    if case == "masks" and rank:
        options["attn_mask"] = torch.ones(8, 8 * world, dtype=torch.bool)
    if case == "sinks" and rank:
        options["sinks"] = torch.ones(2)
    if case == "kinds":
        options["encoding"] = ScoreTerms(query=q.detach()) if rank else None
    if case == "rows":
        options["attn_mask"] = torch.ones(8 * world, 8 * world, dtype=torch.bool)
    if case == "terms":
        options["encoding"] = ScoreTerms(query=torch.ones(1, 2, 8 * world, 4))
    if case == "learns":
        q = q.detach().requires_grad_(rank == 0)
    if case == "start":
        options["query_position"] = torch.tensor(3)
    return said(lambda: context_parallel_attention(q, k, v, **options))


SENTENCES = {
    "no mesh": "TypeError: mesh: got str; expected a DeviceMesh of one dimension; "
    "torch.distributed.device_mesh.init_device_mesh makes one",
    "two dimensions": "UnsupportedError: mesh: got 2 dimensions with the dimensions 'data', 'context'; expected one, "
    "that along which sequences are split; give a part of the mesh, as mesh['context']",
    "lengths": "ShapeError: query: got 8 on rank 0 of 2 and 10 on rank 1; expected the same on all ranks; "
    "relattn.distributed.split makes such parts",
    "odd": "ShapeError: query: got a part of length 7; expected an even one, two pieces of a zigzag; "
    "relattn.distributed.split makes such parts, or take layout='contiguous'",
    "layouts": "ValueError: layout: got another on rank 1 of 2 than on rank 0; expected the same on all ranks",
    "encodings": "ValueError: encoding: got another on rank 1 of 2 than on rank 0; expected the same on all ranks",
    "heads": "UnsupportedError: rotate='ulysses' cannot run this: 2 ranks do not divide 3 heads of queries and 3 of "
    "keys; use 'ring' or 'all_gather'",
    "pairs": "UnsupportedError: rotate='ulysses' cannot run this: a rank would need the rows of attn_mask of all "
    "ranks; use 'ring' or 'all_gather'",
    "dense": "UnsupportedError: backend='dense' cannot run a ring: it has no gradients of a part of a softmax; "
    "use 'triton' or 'native' or 'blocks', or rotate='all_gather'",
    "way": "ValueError: rotate: got 'tree'; expected one of 'auto', 'ring', 'all_gather', 'ulysses'",
    "masks": "ValueError: attn_mask: got another on rank 1 of 2 than on rank 0; expected the same on all ranks",
    "sinks": "ValueError: sinks: got another on rank 1 of 2 than on rank 0; expected the same on all ranks",
    "kinds": "ValueError: encoding: got another on rank 1 of 2 than on rank 0; expected the same on all ranks",
    "rows": "ShapeError: attn_mask: got shape [16, 16]; expected one that broadcasts to [1, 2, 8, 16] (batch, heads, "
    "queries, keys)",
    "terms": "ShapeError: ScoreTerms query: got shape [1, 2, 16, 4]; expected [1, 2, 8, 4], this rank's part; "
    "relattn.distributed.split makes it",
    "learns": "ValueError: grad mode and what requires a gradient: got another on rank 1 of 2 than on rank 0; expected "
    "the same on all ranks",
    "start": "UnsupportedError: query_position: got a start that is a tensor; expected an int where the sequence is "
    "split, for it tells which parts meet; read it with int()",
}


@pytest.mark.parametrize("case", SENTENCES)
def test_all_ranks_say_the_same(case: str, two: Ranks) -> None:
    assert two(refused, 2, case, timeout=30.0) == [SENTENCES[case]] * 2


@pytest.mark.parametrize("case", ["one rank", "short table"])
def test_what_one_rank_refuses_ends_the_call_of_all(case: str, two: Ranks) -> None:
    """A key mask of floats on rank 0 alone; a table that is long enough for the queries of the first rank alone."""
    found = two(refused, 2, case, timeout=30.0)
    refusing = 0 if case == "one rank" else 1
    assert found[refusing].startswith(
        "TypeError: key_mask: got torch.float32" if case == "one rank" else "ValueError: "
    )
    assert found[1 - refusing] == (
        f"RuntimeError: relattn.distributed: rank {refusing} of 2 refused its arguments, so that no rank goes on; see "
        "what it raised"
    )


def of_parts(rank: int, world: int) -> list[str]:
    mesh, tensor = init_device_mesh("cpu", (world,)), torch.ones(2, 6)
    return [
        said(lambda: split(tensor, mesh, dim=2)),
        said(lambda: split(tensor, mesh, dim=1, layout="striped")),  # pyright: ignore[reportArgumentType]
        said(lambda: join(tensor, mesh, dim=1, length=13)),
        said(lambda: unpadded(-1, mesh)),
        said(lambda: ContextParallel(rotate="tree")),  # pyright: ignore[reportArgumentType]
        said(lambda: ContextParallel()._apply(torch.nn.Linear(1, 1), mesh)),
        said(lambda: plan(torch.nn.Linear(1, 1))),
    ]


def test_parts_and_styles_refuse_in_one_sentence(two: Ranks) -> None:
    said = [
        "IndexError: dim: got 2 for a tensor of 2 axes; expected one of them",
        "ValueError: layout: got 'striped'; expected one of 'zigzag', 'contiguous'",
        "ShapeError: length: got 13; expected at most 12, what all parts have together",
        "ValueError: length: got -1; expected an int of at least 0",
        "ValueError: rotate: got 'tree'; expected one of 'auto', 'ring', 'all_gather', 'ulysses'",
        "TypeError: ContextParallel: got Linear; expected a RelativeMultiheadAttention; "
        "relattn.distributed.plan(model) names those of a model",
        "ValueError: plan: got Linear, which has no RelativeMultiheadAttention; expected a model that has one",
    ]
    assert two(of_parts, 2, timeout=30.0) == [said, said]


def dies(rank: int, world: int) -> str:
    """Rank 1 ends while the others attend."""
    mesh = init_device_mesh("cpu", (world,))
    if rank == 1:
        time.sleep(1.0)
        os._exit(1)

    def attend() -> None:
        for _ in range(10_000):
            context_parallel_attention(*parts(), mesh=mesh, rotate="ring")

    return said(attend)


@pytest.mark.slow
def test_a_rank_that_dies_ends_all_others() -> None:
    ranks = Ranks(4, patience=10.0)
    try:
        with pytest.raises(AssertionError) as raised:
            ranks(dies, 4, timeout=60.0)
    finally:
        ranks.stop()
    assert "rank 1 of 4: the process has ended" in str(raised.value)
    for rank in (0, 2, 3):
        sentence = (
            rf"RuntimeError: relattn\.distributed: rank {rank} of 4 waited for the others, who did not answer; "
            r"one of the processes has ended, or is behind by more than the group's timeout: see what it printed; the "
            r"group says: .+"
        )
        assert re.fullmatch(sentence, ranks.last[rank][1]), ranks.last[rank]


def explained(rank: int, world: int) -> list[str]:
    mesh = init_device_mesh("cpu", (world,))
    few = [torch.ones(1, heads, 8, 4) for heads in (8, 1, 1)]
    return [
        str(explain(*parts(heads=3), mesh=mesh)),
        str(explain(*parts(heads=4), mesh=mesh)),
        str(explain(*few, mesh=mesh, enable_gqa=True)),
        str(explain(*parts(), mesh=mesh, layout="contiguous", window=(2, 0))),
        str(explain(*parts(), mesh=mesh, rotate="all_gather")),
    ]


def test_explain_says_why(four: Ranks) -> None:
    by_rank = four(explained, 4)
    assert by_rank[0] == by_rank[3]
    assert [text.partition(":")[0] for text in by_rank[0]] == ["ring", "ulysses", "all_gather", "ring", "all_gather"]
    assert "ulysses: 4 ranks do not divide 3 heads of queries and 3 of keys" in by_rank[0][0]
    assert "all_gather: keys and values of all ranks take 3,072 bytes, more than the 768 of a rank's" in by_rank[0][0]
    assert "all_gather: taken; a rank sends 768 bytes forward and 768 backward" in by_rank[0][2]
    assert "usable, but all_gather was named" in by_rank[0][4]
    assert not dist.is_initialized()
