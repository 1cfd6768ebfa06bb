"""`report.html`: a comparison on one page that loads no other file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from typing import Any

from relattn import catalogue
from relattn_lab import figures
from relattn_lab.corpus import SPLITS
from relattn_lab.encodings import lab_options
from relattn_lab.listen import STYLE as PAGE_STYLE
from relattn_lab.listen import Tune, player
from relattn_lab.reading import sentences
from relattn_lab.results import Summary

STYLE = """
h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; font-size: .9rem; color: var(--soft); }
th:first-child, td:first-child, .text { text-align: left; }
.text { white-space: normal; }
tr.best { background: var(--mark); font-weight: 600; }
td.name { color: var(--soft); vertical-align: top; width: 7rem; }
.wide { overflow-x: auto; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .9rem; }
code { font: .9em ui-monospace, monospace; background: var(--mark); padding: .1em .3em; border-radius: 3px; }
summary { cursor: pointer; color: var(--soft); }
"""
NGRAM = "n-gram"
LISTEN = (
    "The same opening, shaded, continued by every encoding, beside the piece as it was written. Press play; point at a "
    "note to see what the model looked at for it."
)
LENGTHS_CAPTION = "Held-out loss at one, two and four times the trained length."
TRAINING_CAPTION = "Loss on validation data (dots; the n-gram's there is dashed) and on the training windows (thin)."
POSITION_CAPTION = (
    "Held-out loss at each position of windows four times as long as those trained on. Later positions have more to "
    "look back on; past the shaded part they lie further from the window's start than in training."
)


def page(results: dict[str, Any], tunes: Sequence[Tune] = ()) -> str:
    """The page as HTML, without any reference to the outside.

    tunes: to listen to, where the data are four voices.
    """
    settings, data = results["settings"], results["data"]
    seeds = len(settings["seeds"])
    lead = (
        f"The same transformer under {_count(len(settings['encodings']), 'position encoding')}: "
        f"{_count(settings['steps_taken'], 'training step')} each, {_count(seeds, 'seed')}, on {data['name']} "
        f"({_count(data['train']['pieces'], 'piece')} to train on, {data['test']['pieces']} held out)."
    )
    note = (
        f"Negative log-likelihood in nats per token on the {_count(data['test']['pieces'], 'test piece')}, every token "
        f"counted once at every length{', mean ± standard deviation over seeds' if seeds > 1 else ''}. Lower is better."
    )
    paragraphs = "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(results))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>relattn: position encodings compared</title>
<style>{PAGE_STYLE}{STYLE}</style>
</head>
<body>
<h1>Position encodings compared</h1>
<p class="lead">{escape(lead)}</p>
<h2>Held-out loss</h2>
<div class="wide">{_loss_table(results)}</div>
<p class="soft">{escape(note)} {escape(data["words"]["ngram"])}</p>
{_figure(figures.by_length(results), LENGTHS_CAPTION)}
<h2>What the figures say</h2>
{paragraphs}
{_listen(tunes)}<h2>Training</h2>
{_figure(figures.training(results), TRAINING_CAPTION)}
<h2>Loss by position</h2>
{_figure(figures.by_position(results), POSITION_CAPTION)}
<h2>How it was done</h2>
{_method_table(results)}
<details><summary>Every run</summary><div class="wide">{_run_table(results)}</div></details>
</body>
</html>
"""


def _listen(tunes: Sequence[Tune]) -> str:
    return f'<h2>Listen</h2>\n<p class="soft">{LISTEN}</p>\n{player(tunes)}\n' if tunes else ""


def best_of(results: dict[str, Any]) -> str:
    """The row with the lowest loss at the trained length: an encoding, or NGRAM."""
    length = str(results["lengths"][0])
    means = {encoding: summary[length]["mean"] for encoding, summary in results["summary"].items()}
    means[NGRAM] = results["ngram"][length]["nats"]
    return min(means, key=means.__getitem__)


def _loss_table(results: dict[str, Any]) -> str:
    lengths = [str(length) for length in results["lengths"]]
    best = best_of(results)
    ngram = [f"{results['ngram'][length]['nats']:.3f}" for length in lengths]
    rows = [_row(NGRAM, "interpolated counts", ngram, best=best == NGRAM)]
    for encoding, summary in results["summary"].items():
        cells = [Summary(**summary[length]).shown() for length in lengths]
        rows.append(_row(encoding, catalogue.CATALOGUE[encoding].source, cells, best=encoding == best))
    titles = "".join(f"<th>{length} tokens</th>" for length in lengths)
    return _table(f'<th>encoding</th><th class="text">source</th>{titles}', rows)


def _row(name: str, source: str, cells: list[str], best: bool = False) -> str:
    shown = "".join(f"<td>{cell}</td>" for cell in cells)
    mark = ' class="best"' if best else ""
    return f'<tr{mark}><td>{escape(name)}</td><td class="text">{escape(source)}</td>{shown}</tr>'


def _method_table(results: dict[str, Any]) -> str:
    settings, data, machine = results["settings"], results["data"], results["machine"]
    counts = sorted({run["parameters"] for run in results["runs"]})
    parameters = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    splits = [
        f"{split}: {_count(data[split]['pieces'], 'piece')}, {data[split]['tokens']:,} tokens" for split in SPLITS
    ]
    options = {
        "encodings": ",".join(settings["encodings"]),
        "steps": settings["steps_taken"],
        "seeds": ",".join(map(str, settings["seeds"])),
    } | {name: settings[name] for name in ("data", "length", "width", "depth", "heads")}
    processes = max(run["processes"] for run in results["runs"])
    alone, together = ["relattn-lab"], ["torchrun", "--nproc-per-node", str(processes), "-m", "relattn_lab"]
    launcher = alone if processes == 1 else together
    if settings["context_parallel"] > 1:
        options["context-parallel"] = settings["context_parallel"]
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--skip-bad"] * settings["skip_bad"]
    command = shlex.join([*launcher, "compare", *words])
    told = [_told(encoding, settings["length"]) for encoding in settings["encodings"]]
    rows = {
        "encodings": "; ".join(told),
        "data": f"{data['name']} ({'; '.join(splits)}); {data['words']['tokens']}",
        "model": f"decoder-only, pre-norm; width {settings['width']}, {_count(settings['depth'], 'block')}, "
        f"{_count(settings['heads'], 'head')}; {parameters} parameters",
        "training": f"{settings['steps_taken']} steps of {settings['batch']} windows of {settings['length']} tokens; "
        f"Muon and AdamW, cosine from {settings['learning_rate']:g}, dropout {settings['dropout']:g}; "
        f"seeds {options['seeds']}",
        "processes": _shared_work(results),
        "versions": ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        "machine": ", ".join(
            [machine["processor"], f"{machine['cores']} cores", f"{machine['torch_threads']} threads"]
            + machine["accelerators"]
        ),
    }
    lines = [
        f'<tr><td class="name">{name}</td><td class="text">{escape(text)}</td></tr>' for name, text in rows.items()
    ]
    lines.append(f'<tr><td class="name">again</td><td class="text"><code>{escape(command)}</code></td></tr>')
    return _table("", lines)


def _shared_work(results: dict[str, Any]) -> str:
    """How many processes took the steps, and what each of them had."""
    settings, machine = results["settings"], results["machine"]
    counts = sorted({run["processes"] for run in results["runs"]})
    told = "; ".join(_share(count, settings) for count in counts)
    if counts[-1] == 1:
        return told
    threads = _count(machine["torch_threads"], "thread")
    equal = "steps and losses are those of one process up to rounding, each token evaluated once"
    different = "" if settings["dropout"] == 0 else ", but for dropout, which every process draws by itself"
    return f"{told}, {threads} each; {equal}{different}"


def _share(processes: int, settings: dict[str, Any]) -> str:
    """What each of so many processes had of a step."""
    context = settings["context_parallel"]
    windows = _count(settings["batch"] * context // processes, "window")
    if processes == 1:
        return "1"
    if context == 1:
        return f"{processes} processes, each with {windows} of a step's {settings['batch']}"
    return f"{processes} processes, each with one of {context} parts of {windows} of a step's {settings['batch']}"


def _told(encoding: str, length: int) -> str:
    """What the catalogue says of an encoding, and what the lab adds."""
    options = [f"{name}={value}" for name, value in lab_options(encoding, length).items()]
    return ", ".join([f"{encoding}: {catalogue.CATALOGUE[encoding].meaning}", *options])


def _run_table(results: dict[str, Any]) -> str:
    lengths = [str(length) for length in results["lengths"]]
    titles = ["encoding", "seed", "parameters", "ms per step", *(f"{length} tokens" for length in lengths)]
    lines = []
    for run in results["runs"]:
        speed = "" if run["seconds_per_step"] is None else f"{1000 * run['seconds_per_step']:.0f}"
        nats = [f"{run['evaluation'][length]['nats']:.4f}" for length in lengths]
        cells = [run["encoding"], str(run["seed"]), f"{run['parameters']:,}", speed, *nats]
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return _table("".join(f"<th>{title}</th>" for title in titles), lines)


def _table(titles: str, rows: list[str]) -> str:
    head = f"<thead><tr>{titles}</tr></thead>" if titles else ""
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
