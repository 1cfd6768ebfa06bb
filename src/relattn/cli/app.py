"""The commands of `relattn` and their options; each does its work in a module of its own beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import relattn
from relattn.cli.bench import options
from relattn.cli.commands import command_of, new_app
from relattn.cli.console import err, one_sentence

app = new_app(
    "relattn",
    relattn.__version__,
    "Relative positional attention at work: measure what encodings cost, convert checkpoints, and see what this "
    "machine has for them.",
)
_command = command_of(app)


@_command
def bench(
    encodings: options.Encodings = None,
    lengths: options.Lengths = None,
    causal: options.Causal = None,
    modes: options.Modes = None,
    head_dims: options.HeadDims = None,
    heads: options.Heads = None,
    batches: options.Batches = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    seconds: options.Seconds = None,
    patience: options.Patience = None,
) -> None:
    """Measure the time of attention with relative positions on this machine: every backend, beside PyTorch's attention
    without an encoding.

    Encodings: none, relative (a row for every offset), relative-heads (the same for each head), shaw-keys, shaw (both
    clipped at 16), t5, alibi, transformer-xl, rope, key-query, disentangled, and for images and documents
    grid-bias (Swin's table), decomposed (SAM's rows for dy and dx), layout (LayoutLMv3's order of words, x and y);
    relattn-lab compare uses the same names. After Ctrl-C the tables show what was measured until then.

    Memory, the longest sequence and other libraries are measured in a clone of relattn: python -m measure --help.
    """
    arguments = locals()
    with one_sentence():
        given = options.chosen(arguments)
        err.print(f"{options.asked(given)}; loading PyTorch", soft_wrap=True)
        from relattn.cli.bench.command import run

        run(given)


@_command
def convert(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="A .safetensors file, or a .bin, .pt, .pth or .ckpt file of tensors alone."),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new .safetensors file.")],
    from_format: Annotated[str, typer.Option("--from", help="The format of IN.")],
    to_format: Annotated[str, typer.Option("--to", help="The format of OUT.")],
) -> None:
    """Convert the attention layers of a checkpoint to relattn's, or back; all other tensors stay as they are.

    Formats: relattn, and bert_relative_key, bert_relative_key_query, transfo_xl, tensor2tensor_relative,
    tensor2tensor_relative_v2, tensor2tensor_unmasked_relative_v2, returnn_key_shift, returnn_rel_pos,
    x_transformers_t5. One of the two is relattn.
    """
    with one_sentence():
        from relattn.cli.convert import run

        run(source, target, from_format, to_format)


@_command
def doctor() -> None:
    """Show versions, devices, and which backends are usable and, for each that is not, why."""
    from relattn.cli.doctor import run

    run()
