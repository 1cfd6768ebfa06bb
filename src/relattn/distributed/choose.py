"""Choose: how keys and values come to the queries that see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relattn.distributed import traffic
from relattn.distributed.lowering import Call
from relattn.distributed.needs import Needs
from relattn.distributed.ring_schedule import rounds
from relattn.distributed.traffic import Traffic
from relattn.equation.tables import wide
from relattn.errors import UnsupportedError

Rotate = Literal["ring", "all_gather", "ulysses"]
ROTATES: tuple[Rotate, ...] = ("ring", "all_gather", "ulysses")


@dataclass(frozen=True)
class Choice:
    """The answer of `explain`: the chosen way, and for each of the others why not.

    rotate: the chosen way. others: the other ways, and why not.
    hops: how many times the ring passes a chunk of keys and values on, by the limits of the offset.
    sent: the bytes that a rank sends in a call, for each way; on average, where masks let the ranks of a ring differ.
        Not counted are an encoding's own relative queries, explicit positions, and what sinks and lse add to Ulysses.
    is_bound: whether key_mask or segment_ids may hide so much that the ring sends less than it says here.
    """

    rotate: Rotate
    hops: int
    sent: dict[Rotate, Traffic]
    others: dict[Rotate, str]
    is_bound: bool

    def __str__(self) -> str:
        lines = [f"{self.rotate}: taken; {self._bytes(self.rotate)}"]
        for rotate, why in self.others.items():
            sent = f"; {self._bytes(rotate)}" if rotate in self.sent else ""
            lines.append(f"{rotate}: {why}{sent}")
        return "\n".join(lines)

    def _bytes(self, rotate: Rotate) -> str:
        sent = self.sent[rotate]
        at_most = "on average at most " if rotate == "ring" and self.is_bound else ""
        return f"a rank sends {at_most}{sent.forward:,} bytes forward and {sent.backward:,} backward"


def choose(call: Call, rotate: Rotate | Literal["auto"], needs: Needs | None = None) -> Choice:
    """The way called `rotate`. For "auto": the way by which a rank sends the least, and holds no more than it has
    anyway.

    needs: what the ranks have told each other; None: nothing, so that the ring's bytes follow from the limits alone.

    Raises UnsupportedError: for a way that is not possible.
    """
    against = _against_ulysses(call)
    if rotate == "ulysses" and against:
        raise UnsupportedError(f"rotate='ulysses' cannot run this: {against}; use 'ring' or 'all_gather'")
    sent: dict[Rotate, Traffic] = {
        way: _traffic(call, way, needs) for way in ROTATES if way != "ulysses" or not against
    }
    larger = _against_all_gather(call) if rotate == "auto" else ""
    ways: list[Rotate] = [way for way in sent if way != "all_gather" or not larger]
    choice = min(ways, key=lambda way: sum(sent[way])) if rotate == "auto" else rotate
    others: dict[Rotate, str] = {}
    hops = call.hops()
    is_bound = needs is None and call.hides_by_data() and hops > 0
    for way in ROTATES:
        if way == choice:
            continue
        if way == "ulysses" and against:
            others[way] = against
        elif rotate != "auto":
            others[way] = f"usable, but {choice} was named"
        elif way == "all_gather" and larger:
            others[way] = larger
        elif way == "ring" and is_bound:
            others[way] = f"taken if key_mask or segment_ids hide so much that it sends no more than {choice}"
        else:
            others[way] = f"usable, but {choice} sends no more"
    return Choice(choice, hops, sent, others, is_bound)


def _against_ulysses(call: Call) -> str:
    """Why positions cannot be exchanged for heads; empty if they can."""
    world, heads, key_heads = call.group.world, call.query.shape[1], call.key.shape[1]
    if heads % world or key_heads % world:
        return f"{world} ranks do not divide {heads} heads of queries and {key_heads} of keys"
    if call.attn_mask is not None:
        return "a rank would need the rows of attn_mask of all ranks"
    return ""


def _against_all_gather(call: Call) -> str:
    """Why "auto" does not hold all keys and values at once; empty if they take no more than queries and outputs."""
    gathered = call.group.world * (call.key.nbytes + call.value.nbytes)
    width = call.query.shape[3] + call.value.shape[3]
    own = call.query.nbytes // max(call.query.shape[3], 1) * width
    if gathered <= own:
        return ""
    return (
        f"keys and values of all ranks take {gathered:,} bytes, more than the {own:,} of a rank's queries and outputs"
    )


def _beside(call: Call) -> Traffic:
    """What every rank needs about all keys, for every way of sending them."""
    world, sent = call.group.world, Traffic(0, 0)
    for one in (call.key_mask, None if call.segments is None else call.segments[1], call.key_bias):
        if one is not None:
            sent = sent.plus(traffic.gathered(world, one.nbytes, differentiable=one.requires_grad))
    return sent


def _traffic(call: Call, rotate: Rotate, needs: Needs | None) -> Traffic:
    batch, heads, queries, width = call.query.shape
    _, key_heads, keys, value_width = call.value.shape
    size, sums = call.query.element_size(), wide(call.query.new_empty(0)).element_size()
    sizes = traffic.Sizes(call.group.world, batch, heads, key_heads, queries, keys, width, value_width, size, sums)
    if rotate == "ring":
        sent = traffic.ring(sizes, call.hops()) if needs is None else _of_needs(call, sizes, needs)
    elif rotate == "all_gather":
        sent = traffic.all_gather(sizes)
    else:
        sent = traffic.ulysses(sizes)
    return sent.plus(_beside(call))


def _of_needs(call: Call, sizes: traffic.Sizes, needs: Needs) -> Traffic:
    lengths = [sum(part.stop - part.start for part in share) for share in rounds(call.own(sizes.keys))]
    of_all = traffic.ring_of_keys(sizes, *needs.sent(lengths))
    return Traffic(*(-(-sent // sizes.world) for sent in of_all))
