"""The commands of `relattn` and their options; each does its work in a module of its own beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import relattn
from relattn.cli.commands import command_of, names, new_app, numbers
from relattn.cli.console import err, one_sentence

BENCH_ENCODINGS, BENCH_LENGTHS = "relative,shaw,t5,alibi", "512,1024,2048"
"""What `bench` measures unless told otherwise, said before PyTorch is loaded; `relattn.bench.settings` has the same."""

app = new_app(
    "relattn",
    relattn.__version__,
    "Relative positional attention at work: measure what encodings cost, convert checkpoints, and see what this "
    "machine has for them.",
)
_command = command_of(app)


@_command
def bench(
    study: Annotated[
        str | None, typer.Argument(help="One of the studies below; without one, the workloads of the options.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for results.json, table.md and the pictures. A study writes STUDY.json and STUDY.md, or a "
            "folder STUDY."
        ),
    ] = Path("runs/bench"),
    encodings: Annotated[
        str | None, typer.Option(help="Encodings, separated by commas.", show_default=BENCH_ENCODINGS)
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Sequence lengths, separated by commas.", show_default=BENCH_LENGTHS)
    ] = None,
    causal: Annotated[str | None, typer.Option(help="no, yes, or both: no,yes.", show_default="no,yes")] = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="forward, training (forward and gradients), decoding (one query and a cache), separated by commas.",
            show_default="forward,training",
        ),
    ] = None,
    head_dims: Annotated[str | None, typer.Option(help="Widths of a head.", show_default="64")] = None,
    heads: Annotated[str | None, typer.Option(help="Numbers of heads.", show_default="8")] = None,
    batches: Annotated[str | None, typer.Option(help="Numbers of sequences.", show_default="1")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 or float64.", show_default="float32")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="cuda where there is a GPU")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time for the pairs of one candidate in one cell; 15 pairs at least.", show_default="0.5"),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(help="Seconds one step may take; slower candidates are given up.", show_default="5"),
    ] = None,
    max_length: Annotated[
        float | None,
        typer.Option(help="Also look for the longest training step within this many GiB.", metavar="BUDGET_GB"),
    ] = None,
) -> None:
    """Measure time and memory of attention with relative positions, ours and others', on this machine.

    Encodings: none, relative (a row for every offset), relative-heads (the same for each head), shaw-keys, shaw (both
    clipped at 16), t5, alibi, transformer-xl, rope, key-query, disentangled, and for images and documents
    grid-bias (Swin's table), decomposed (SAM's rows for dy and dx), layout (LayoutLMv3's order of words, x and y);
    relattn-lab compare uses the same names. Every candidate is first checked against float64; one that is wrong gets
    no figure. Ctrl-C keeps what was measured, and the same command goes on.

    A study has settings of its own. relattn's pages show the studies. On a grid of lengths: relative, relative-causal,
    t5. Others: encodings, window, batches, heads, small, decoding, layer-decoding, cost-per-pair, memory,
    dropout, sam, swin, layoutlm, whole-models, hugging-face, keras, devices, first-use, instructions, small-numbers,
    tile-sizes.
    """
    with one_sentence():
        given = {
            "encodings": names(encodings),
            "lengths": None if lengths is None else numbers("lengths", lengths, "512,1024"),
            "causal": names(causal),
            "modes": names(modes),
            "head_dims": None if head_dims is None else numbers("head_dims", head_dims, "64,128"),
            "heads": None if heads is None else numbers("heads", heads, "4,8"),
            "batches": None if batches is None else numbers("batches", batches, "1,4"),
            "dtype": dtype,
            "device": device,
            "seconds": seconds,
            "patience": patience,
            "max_length": max_length,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if study is not None:
            from relattn.cli.studies import run as run_study

            run_study(study, given, out)
            return
        asked = f"{encodings or BENCH_ENCODINGS} at {lengths or BENCH_LENGTHS} tokens"
        err.print(f"benchmark: {asked}; loading PyTorch", soft_wrap=True)
        from relattn.cli.bench import run

        run(given, out)


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
