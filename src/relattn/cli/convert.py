"""`relattn convert`: a checkpoint in, the same weights in another format out, and a table of old and new names."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from rich.table import Table

from relattn.cli.console import out
from relattn.cli.tensor_files import check_new, read_tensors, write_tensors
from relattn.convert import FORMATS, from_relattn, layers, to_relattn
from relattn.encodings.catalogue import name_of
from relattn.nn import RelativeMultiheadAttention

OURS = "relattn"
OF_THE_LAB = ("embedding.weight", "blocks.0.attention_norm.weight", "blocks.0.attention.q_proj.weight")
"""Names of a model of the lab, which no other model has together."""
THE_LAB_S = (
    "in: got {}, a model that `relattn-lab compare` or `relattn-lab reproduce` wrote, with relattn's own layers; "
    "expected one whose layers {} has; compose with it by `relattn-lab compose --checkpoint {}`, or load it by "
    "relattn_lab.checkpoint.load_checkpoint"
)


def run(source: Path, target: Path, from_format: str, to_format: str) -> None:
    """Convert a file; nothing is written unless all of it is right."""
    theirs = _check_formats(from_format, to_format)
    check_new(target)
    before = read_tensors(source)
    try:
        after = to_relattn(before, theirs) if to_format == OURS else from_relattn(before, theirs)
    except ValueError:
        if all(name in before for name in OF_THE_LAB):
            raise ValueError(THE_LAB_S.format(source, theirs, quote(str(source.parent)))) from None
        raise
    found = layers(before if to_format == OURS else after, theirs)
    write_tensors(target, after)
    out.print(_table(f"{len(found)} attention layers from {from_format} to {to_format}", found))
    passed = len(before.keys() & after.keys())
    out.print(f"{passed} other tensors as they were")
    if FORMATS[theirs].note:
        out.print(f"note: {FORMATS[theirs].note}", soft_wrap=True)
    out.print(f"written  {target}", soft_wrap=True)


def _check_formats(from_format: str, to_format: str) -> str:
    """The one of the two that is not relattn's own.

    Raises ValueError: when they are not one of each.
    """
    known = (OURS, *FORMATS)
    for option, name in (("from", from_format), ("to", to_format)):
        if name not in known:
            raise ValueError(f"{option}: got {name!r}; expected one of {', '.join(known)}")
    if (from_format == OURS) == (to_format == OURS):
        raise ValueError(f"from, to: got {from_format!r} and {to_format!r}; expected {OURS!r} as one of them, and once")
    return from_format if to_format == OURS else to_format


def _table(title: str, found: dict[str, RelativeMultiheadAttention]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("layer", "width", "heads", "encoding", "made with"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "layer")
    for name, layer in found.items():
        assert layer.encoding is not None
        made = f"{type(layer.encoding).__name__}({layer.encoding.extra_repr()})"
        heads = f"{layer.num_heads} of {layer.head_dim}"
        table.add_row(name or "(the file)", str(layer.embed_dim), heads, name_of(layer.encoding), made)
    return table
