"""context_parallel_attention: relative_attention of sequences that lie along the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from relattn.backends.select import check_backend, select
from relattn.call import Options, checked
from relattn.checks.autocast import without_autocast
from relattn.checks.positions import check_window
from relattn.checks.tensors import check_key_mask, check_segments
from relattn.checks.values import check_choice, check_flag, check_probability
from relattn.distributed import gathering, ring
from relattn.distributed.arguments import Arguments, agree, agree_on_arguments
from relattn.distributed.choose import ROTATES, Choice, Rotate, choose
from relattn.distributed.group import Group
from relattn.distributed.lowering import Call, check_whole_rows, gathered, lowered
from relattn.distributed.merge import merging
from relattn.distributed.needs import Needs
from relattn.distributed.parts import LAYOUTS, Layout, check_part, pieces
from relattn.distributed.positions import SplitPositions, split_positions
from relattn.distributed.visible_parts import exchanged_needs, visible_parts
from relattn.encodings.base import RelativeEncoding
from relattn.equation.key_bias import check_key_bias
from relattn.equation.mask import AttentionMask, Segments
from relattn.equation.problem import Problem
from relattn.equation.sinks import check_sinks, share
from relattn.equation.terms import ScoreTerms
from relattn.positions.position import PositionsLike
from relattn.positions.positions import Window, limits

Function = TypeVar("Function", bound=Callable[..., object])


def _outside_of_graphs(function: Function) -> Function:
    """A graph breaks here: it does not record how ranks talk to each other.

    In the types of torch.compiler.disable the function's own arguments and documentation are lost.
    """
    return torch.compiler.disable(function)  # pyright: ignore[reportReturnType]


@_outside_of_graphs
def context_parallel_attention(
    query: Float[Tensor, "*B Hq n D"],
    key: Float[Tensor, "*B Hk m D"],
    value: Float[Tensor, "*B Hk m Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mesh: DeviceMesh,
    layout: Layout = "zigzag",
    rotate: Rotate | Literal["auto"] = "auto",
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: PositionsLike = 0,
    key_position: PositionsLike = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "*B m"] | None = None,
    segment_ids: Segments | None = None,
    key_bias: Float[Tensor, "*#B #Hq m"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq n"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "*B Hq n Dv"]:
    """relative_attention of a sequence whose parts the ranks of a mesh hold: every tensor is the rank's part.

    It is the same equation, with the same numbers up to rounding. The gradients by query, key and value are those of
    the rank's part. For anything that all ranks have (an encoding's parameters, sinks [Hq]) a rank gives the gradient
    from its own queries. The whole gradient is the sum over the ranks, as DDP and FSDP take it over a mesh that has
    these ranks.

    query, key, value, is_causal, scale, enable_gqa, window, key_mask, segment_ids: as in `relative_attention`.
    key_bias, softcap, sinks: as there.
    mesh: a DeviceMesh of one dimension. layout: the pieces that a rank holds, as `split` cuts them. "zigzag" gives all
        ranks the same number of pairs under causality. With "contiguous" a window reaches only the neighbours.
    rotate: "ring" sends keys and values from rank to rank while it computes, and holds two chunks at a time. What
        key_mask or segment_ids hide from all queries of a rank is not sent to it. "all_gather" brings them together
        first. "ulysses" exchanges positions for heads; the number of ranks must divide the numbers of heads. "auto"
        takes the way by which a rank sends the least, see `explain`.
    encoding: the same on all ranks. ScoreTerms have the rank's part of query, key and relative_query, and whole tables.
    query_position, key_position: an int or GridPositions are for the whole sequence; a tensor is for the rank's part.
    attn_mask: the rows of the rank's queries, and the columns of all keys in the order of the sequence.
    dropout_p: it drops the same weights as one process of `native`, `blocks` or `triton` whose generator has the state
        of rank 0's.
    backend: for "ring" a backend with gradients of a part of the keys: "native", "blocks" or "triton".

    The answer is as in `relative_attention`. All ranks call it, with the same options.

    Raises what `relative_attention` raises, and, on all ranks: ShapeError, ValueError: where lengths, options or the
    encoding's parameters differ between the ranks; RuntimeError: where another rank refuses its arguments, or has
    ended; UnsupportedError: for a mesh of several dimensions, and for what `rotate` cannot do.

    Source: Liu, Zaharia, Abbeel 2023 (ring); Jacobs et al. 2023 (Ulysses); zigzag as in PyTorch's head-tail sharding.
    """
    options = Options(
        attn_mask=attn_mask, key_mask=key_mask, segment_ids=segment_ids, window=window, key_bias=key_bias,
        softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=scale, backend=backend,
    )  # fmt: skip
    check = partial(
        _arguments, query, key, value, is_causal, enable_gqa, layout, rotate, encoding, query_position, key_position,
        options,
    )  # fmt: skip
    return _attend(mesh, check, dropout_p)[0]


@_outside_of_graphs
def context_parallel_attention_and_lse(
    query: Float[Tensor, "*B Hq n D"],
    key: Float[Tensor, "*B Hk m D"],
    value: Float[Tensor, "*B Hk m Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mesh: DeviceMesh,
    layout: Layout = "zigzag",
    rotate: Rotate | Literal["auto"] = "auto",
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: PositionsLike = 0,
    key_position: PositionsLike = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "*B m"] | None = None,
    segment_ids: Segments | None = None,
    key_bias: Float[Tensor, "*#B #Hq m"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq n"] | None = None,
    backend: str = "auto",
) -> tuple[Float[Tensor, "*B Hq n Dv"], Float[Tensor, "*B Hq n"]]:
    """attention_and_lse of a sequence whose parts the ranks of a mesh hold: O and lse [*B, Hq, n] of a rank's queries.

    query, key, value, scale, enable_gqa, encoding, query_position, key_position: as in `context_parallel_attention`.
    attn_mask, is_causal, window, key_mask, segment_ids, key_bias, softcap, sinks: as there.
    dropout_p, mesh, layout, rotate, backend: as there.

    It raises what `context_parallel_attention` raises.
    """
    options = Options(
        attn_mask=attn_mask, key_mask=key_mask, segment_ids=segment_ids, window=window, key_bias=key_bias,
        softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=scale, backend=backend,
    )  # fmt: skip
    check = partial(
        _arguments, query, key, value, is_causal, enable_gqa, layout, rotate, encoding, query_position, key_position,
        options, return_lse=True,
    )  # fmt: skip
    return _attend(mesh, check, dropout_p)


def explain(
    query: Float[Tensor, "*B Hq n D"],
    key: Float[Tensor, "*B Hk m D"],
    value: Float[Tensor, "*B Hk m Dv"],
    attn_mask: AttentionMask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mesh: DeviceMesh,
    layout: Layout = "zigzag",
    rotate: Rotate | Literal["auto"] = "auto",
    encoding: RelativeEncoding | ScoreTerms | None = None,
    query_position: PositionsLike = 0,
    key_position: PositionsLike = 0,
    window: Window | None = None,
    key_mask: Bool[Tensor, "*B m"] | None = None,
    segment_ids: Segments | None = None,
    key_bias: Float[Tensor, "*#B #Hq m"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | Float[Tensor, "*B Hq n"] | None = None,
    backend: str = "auto",
) -> Choice:
    """How `context_parallel_attention` with these arguments sends what the ranks need, and why not in another way.

    A single rank may call it: nothing is sent. So it does not know what key_mask and segment_ids hide of other ranks.
    Where they are given, the ring's bytes are the most that a rank may send on average, and "auto" may take the ring
    where another way is named here. It raises what `context_parallel_attention` raises for one rank's arguments.

    query, key, value, scale, enable_gqa, encoding, query_position, key_position: as in `context_parallel_attention`.
    attn_mask, is_causal, window, key_mask, segment_ids, key_bias, softcap, sinks: as there.
    dropout_p, mesh, layout, rotate, backend: as there.
    """
    options = Options(
        attn_mask=attn_mask, key_mask=key_mask, segment_ids=segment_ids, window=window, key_bias=key_bias,
        softcap=softcap, sinks=sinks, dropout_p=dropout_p, scale=scale, backend=backend,
    )  # fmt: skip
    arguments = _arguments(
        query, key, value, is_causal, enable_gqa, layout, rotate, encoding, query_position, key_position, options,
        Group(mesh),
    )  # fmt: skip
    return choose(arguments.call, arguments.rotate)


def _attend(mesh: DeviceMesh, check: Callable[[Group], Arguments], dropout_p: float) -> tuple[Tensor, Tensor]:
    """O and lse, once all ranks have arguments that agree."""
    group = Group(mesh)
    arguments = agree_on_arguments(group, lambda: check(group).with_prepared_keys(), dropout_p)
    with without_autocast(arguments.call.query):
        return _answer(arguments)


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    enable_gqa: bool,
    layout: Layout,
    rotate: Rotate | Literal["auto"],
    encoding: RelativeEncoding | ScoreTerms | None,
    query_position: PositionsLike,
    key_position: PositionsLike,
    options: Options,
    group: Group,
    *,
    return_lse: bool = False,
) -> Arguments:
    """The arguments with one batch axis, checked as far as one rank can. return_lse: whether the caller gets lse."""
    query, key, value, batch = checked(query, key, value, enable_gqa)
    check_flag("is_causal", is_causal)
    check_choice("layout", layout, LAYOUTS)
    check_choice("rotate", rotate, ("auto", *ROTATES))
    check_backend(options.backend)
    rows, lengths = query.shape[0], (query.shape[2], key.shape[2])
    for name, length in zip(("query", "key"), lengths, strict=True):
        check_part(name, length, layout)
    if (key_mask := options.key_mask) is not None:
        check_key_mask(key_mask, batch, key)
    segments, key_bias, sinks = None, options.key_bias, options.sinks
    if options.segment_ids is not None:
        of_queries, of_keys = check_segments(options.segment_ids, batch, query, key)
        segments = of_queries.reshape(rows, lengths[0]), of_keys.reshape(rows, lengths[1])
    dropout_p = check_probability("dropout_p", options.dropout_p)
    for_all = Options(softcap=options.softcap, dropout_p=dropout_p, scale=options.scale)

    def side(name: str, position: PositionsLike, length: int) -> SplitPositions:
        own = pieces(group.rank, group.world, length, layout)
        return split_positions(name, position, batch, own, length * group.world, query.device)

    call = Call(
        group, layout, query, key, value, batch,
        side("query_position", query_position, lengths[0]), side("key_position", key_position, lengths[1]),
        limits(is_causal, check_window(options.window)), encoding, options.attn_mask,
        None if key_mask is None else key_mask.reshape(rows, lengths[1]),
        segments, None if key_bias is None else check_key_bias(key_bias, batch, query, key), for_all,
    )  # fmt: skip
    check_whole_rows(call)
    choose(call, rotate)  # it refuses impossible combinations
    sinks = None if sinks is None else check_sinks(sinks, batch, query)
    return Arguments(call, rotate, options.backend, sinks, return_lse)


def _answer(arguments: Arguments) -> tuple[Tensor, Tensor]:
    """O and lse, with the caller's axes."""
    call = arguments.call
    keys = gathered(call)
    visible = needs = None
    if arguments.rotate in ("ring", "auto"):
        visible = visible_parts(call, keys)
        needs = exchanged_needs(call, visible) if call.hides_by_data() else None
    choice = choose(call, arguments.rotate, needs)
    problems = _all_lowered(call, lambda: _checked(lowered(call, keys), choice, arguments.backend))
    if arguments.sinks is not None:
        problems = [problem.replace(output_dtype=problem.score_dtype()) for problem in problems]
    if choice.rotate == "ulysses":
        output, lse = gathering.ulysses(call, keys, problems, arguments.backend)
    elif choice.rotate == "ring":
        assert visible is not None
        needs = needs or Needs.within(call.group.world, choice.hops)
        output, lse = ring.attend(call, problems, needs, visible, arguments.backend)
    else:
        output, lse = gathering.all_gather(call, problems, arguments.backend)
    if arguments.sinks is not None:
        output = (output * share(lse, arguments.sinks)).to(call.query.dtype)
    if len(call.batch) == 1:
        return output, lse
    return output.unflatten(0, call.batch), lse.unflatten(0, call.batch)


def _checked(problems: list[Problem], choice: Choice, backend: str) -> list[Problem]:
    """The problems, if the backend that the caller named runs them."""
    if choice.rotate == "ring":  # before anything is sent: if one rank raises while others wait, they wait forever
        merging(backend, problems)
    else:
        for problem in problems:
            select(backend, problem)
    return problems


def _all_lowered(call: Call, lower: Callable[[], list[Problem]]) -> list[Problem]:
    """The problems, if all ranks have theirs: a table may be too short only for the queries of one rank."""
    problems = error = None
    try:
        problems = lower()
    except Exception as raised:
        error = raised
    agree(call.group, {}, {}, error)
    assert problems is not None
    return problems
