"""`report.html`: a comparison on one page that needs nothing but itself."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from relattn.lab import figures
from relattn.lab.encodings import named_encoding
from relattn.lab.music.files import atomic_path

STYLE = """
:root { color-scheme: light dark; --paper: #fdfcfa; --ink: #23262b; --soft: #6a707a; --line: #e3e0da; --mark: #f3efe6; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #17191d; --ink: #e4e2dd; --soft: #9aa0a9; --line: #32363d; --mark: #22262c; }
}
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 54rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem; }
p.lead, figcaption, .soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .source { text-align: left; }
th { font-weight: 600; font-size: .9rem; color: var(--soft); }
tr.best td { background: var(--mark); font-weight: 600; }
table.plain td { text-align: left; vertical-align: top; }
table.plain td:first-child { color: var(--soft); white-space: nowrap; width: 11rem; }
.wide { overflow-x: auto; }
figure { margin: 1rem 0; } figure svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .9rem; }
code { font: .9em ui-monospace, monospace; background: var(--mark); padding: .1em .3em; border-radius: 3px; }
summary { cursor: pointer; color: var(--soft); }
"""


def write_report(path: Path, results: dict[str, Any]) -> None:
    """Write the page for what `results.json` holds; it appears under its name only once it is whole."""
    with atomic_path(path) as draft:
        draft.write_text(page(results), encoding="utf-8")


def page(results: dict[str, Any]) -> str:
    """The page as HTML, without any reference to the outside."""
    settings, data = results["settings"], results["data"]
    seeds = len(settings["seeds"])
    lead = (
        f"The same transformer under {len(settings['encodings'])} position encodings: {settings['steps_taken']} training steps each, "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}, on {data['name']} ({data['train']['pieces']} pieces to train on, "
        f"{data['test']['pieces']} held out)."
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>relattn: position encodings compared</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Position encodings compared</h1>
<p class="lead">{escape(lead)}</p>
<h2>Held-out loss</h2>
<div class="wide">{_table(results)}</div>
<p class="soft">Negative log-likelihood in nats per token on the {data['test']['pieces']} test pieces, every token counted once at every
length{", mean ± standard deviation over seeds" if seeds > 1 else ""}. Lower is better.</p>
{_figure(figures.by_length(results), "Held-out loss at one, two and four times the trained length.")}
<h2>What the figures say</h2>
{_reading(results)}
<h2>Training</h2>
{_figure(figures.training(results), "Loss on validation pieces (dots) and on the training windows (thin lines).")}
<h2>Loss by position</h2>
{_figure(figures.by_position(results), "Held-out loss at each position of windows four times as long as those trained on. Later positions "
         "have more music to look back on; past the shaded part they lie further from the window's start than in training.")}
<h2>How it was done</h2>
{_method(results)}
<details><summary>Every run</summary><div class="wide">{_runs(results)}</div></details>
</body>
</html>
"""


def _table(results: dict[str, Any]) -> str:
    lengths = [str(length) for length in results["lengths"]]
    best = min(results["summary"], key=lambda encoding: results["summary"][encoding][lengths[0]]["mean"])
    rows = [["encoding", "source", *(f"{length} tokens" for length in lengths)]]
    rows.append(["n-gram", "interpolated counts", *(f"{results['ngram'][length]['nats']:.3f}" for length in lengths)])
    for encoding, summary in results["summary"].items():
        rows.append([encoding, named_encoding(encoding).source, *(_mean_and_spread(summary[length]) for length in lengths)])
    head, *body = rows
    lines = ["<table><thead><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr></thead><tbody>"]
    for cells in body:
        mark = ' class="best"' if cells[0] == best else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _reading(results: dict[str, Any]) -> str:
    """The figures in sentences, each drawn from them alone."""
    trained, longest = str(results["lengths"][0]), str(results["lengths"][-1])
    ngram = results["ngram"][trained]["nats"]
    means = {encoding: summary[trained]["mean"] for encoding, summary in results["summary"].items()}
    ranked = sorted(means, key=means.__getitem__)
    sentences = []
    below = [encoding for encoding in ranked if means[encoding] < ngram]
    if len(below) == len(ranked):
        sentences.append(f"All models are below the n-gram's {ngram:.3f}: they have learnt more than local statistics.")
    elif below:
        rest = ", ".join(encoding for encoding in ranked if encoding not in below)
        sentences.append(f"Below the n-gram's {ngram:.3f}: {', '.join(below)}. Not yet: {rest}; longer training is needed there.")
    else:
        sentences.append(
            f"No model is below the n-gram's {ngram:.3f} yet: this run is too short to judge encodings by. Give it more minutes."
        )
    if len(ranked) > 1:
        gap = means[ranked[1]] - means[ranked[0]]
        sentences.append(f"At the trained length {ranked[0]} is lowest, {gap:.3f} nats below {ranked[1]}.{_doubt(results, ranked, gap)}")
    changes = {e: summary[longest]["mean"] - summary[trained]["mean"] for e, summary in results["summary"].items()}
    changed = "; ".join(f"{encoding} {change:+.3f}" for encoding, change in sorted(changes.items(), key=lambda item: item[1]))
    sentences.append(
        f"From windows of {trained} to {longest} tokens the loss changes by: {changed}. A fall means that the model uses music further "
        "back than it was trained on, a rise that the encoding does not carry over to longer windows."
    )
    sentences.append(
        "One nat less means that the model gives every token e = 2.72 times the probability, on average (geometric mean). Most tokens "
        "repeat the same voice's note of the step before, so losses are small and small differences count."
    )
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _doubt(results: dict[str, Any], ranked: list[str], gap: float) -> str:
    trained = str(results["lengths"][0])
    spreads = [results["summary"][encoding][trained]["spread"] for encoding in ranked[:2]]
    if None in spreads:
        return " With a single seed there is no telling whether that is more than chance."
    if gap < sum(spreads):
        return " That is within the seeds' spread."
    return " That is more than the seeds' spread."


def _method(results: dict[str, Any]) -> str:
    settings, data, machine = results["settings"], results["data"], results["machine"]
    parameters = sorted({run["parameters"] for run in results["runs"]})
    counts = f"{parameters[0]:,}" if len(parameters) == 1 else f"{parameters[0]:,} to {parameters[-1]:,}"
    command = (
        f"relattn compare --data {data['name']} --encodings {','.join(settings['encodings'])} --steps {settings['steps_taken']} "
        f"--seeds {','.join(map(str, settings['seeds']))} --length {settings['length']} --width {settings['width']} "
        f"--depth {settings['depth']} --heads {settings['heads']}"
    )
    splits = "; ".join(f"{split}: {data[split]['pieces']} pieces, {data[split]['tokens']:,} tokens" for split in ("train", "valid", "test"))
    rows = {
        "data": f"{data['name']} ({splits}); four voices interleaved on a 16th-note grid; training windows are transposed at random",
        "model": f"decoder-only, pre-norm; width {settings['width']}, {settings['depth']} blocks, {settings['heads']} heads; {counts} parameters",
        "training": f"{settings['steps_taken']} steps of {settings['batch']} windows of {settings['length']} tokens; AdamW, cosine from "
        f"{settings['learning_rate']:g}, dropout {settings['dropout']:g}; seeds {', '.join(map(str, settings['seeds']))}",
        "versions": ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        "machine": f"{machine['processor']}, {machine['cores']} cores, {machine['torch_threads']} threads"
        + "".join(f", {name}" for name in machine["accelerators"]),
    }
    body = "".join(f"<tr><td>{name}</td><td>{escape(text)}</td></tr>" for name, text in rows.items())
    return f'<table class="plain"><tbody>{body}<tr><td>again</td><td><code>{escape(command)}</code></td></tr></tbody></table>'


def _runs(results: dict[str, Any]) -> str:
    lengths = [str(length) for length in results["lengths"]]
    head = ["encoding", "seed", "parameters", "ms per step", *(f"{length} tokens" for length in lengths)]
    lines = ["<table><thead><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr></thead><tbody>"]
    for run in results["runs"]:
        speed = "" if run["seconds_per_step"] is None else f"{1000 * run['seconds_per_step']:.0f}"
        nats = [f"{run['evaluation'][length]['nats']:.4f}" for length in lengths]
        cells = [run["encoding"], str(run["seed"]), f"{run['parameters']:,}", speed, *nats]
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _mean_and_spread(summary: dict[str, Any]) -> str:
    return f"{summary['mean']:.3f}" + ("" if summary["spread"] is None else f" ± {summary['spread']:.3f}")
