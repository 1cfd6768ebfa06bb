"""The report: self-contained, and saying what the figures say."""

import html
import re
import shlex
from dataclasses import asdict
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure

from relattn_lab import figures
from relattn_lab.encodings import ENCODINGS
from relattn_lab.reading import sentences
from relattn_lab.report import page
from relattn_lab.voices.corpus import VoicesCorpus


def record(nats, length):
    count = [10] * (length // 2) + [4] * (length // 4) + [0] * (length - length // 2 - length // 4)
    return {"nats": nats, "tokens": sum(count), "by_position": [nats if n else None for n in count], "count": count}


def results(losses, seeds=(0, 1), ngram=0.5, longer=0.0):
    """Results of a comparison with `losses`: encoding -> one figure for each seed."""
    lengths = [16, 32, 64]

    def summary(values, length):
        shift = longer * lengths.index(length) / 2
        return {"mean": np.mean(values) + shift, "spread": np.std(values, ddof=1) if len(values) > 1 else None}

    return {
        "format": 1,
        "settings": {
            "data": "chorales", "encodings": list(losses), "seeds": list(seeds), "steps_taken": 20, "length": 16,
            "width": 8, "depth": 1, "heads": 2, "batch": 2, "learning_rate": 0.006, "dropout": 0.0,
            "context_parallel": 1, "skip_bad": False,
        },
        "versions": {"relattn": "0.1.0", "torch": "2"},
        "machine": {"processor": "A <fast> one", "cores": 2, "torch_threads": 2, "accelerators": ["GPU & Co"]},
        "data": {"name": "chorales", "words": asdict(VoicesCorpus.words)}
        | {split: {"pieces": 3, "tokens": 1234} for split in ("train", "valid", "test")},
        "lengths": lengths,
        "ngram_validation": ngram + 0.04,
        "ngram": {str(length): record(ngram, length) for length in lengths},
        "summary": {e: {str(length): summary(values, length) for length in lengths} for e, values in losses.items()},
        "runs": [
            {
                "encoding": encoding, "seed": seed, "steps": 20, "processes": 1, "parameters": 5000,
                "seconds_per_step": 0.012,
                "training": [[10, 2.0], [20, value]], "validation": [[10, 2.1], [20, value]],
                "evaluation": {str(length): record(value, length) for length in lengths},
            }
            for encoding, values in losses.items()
            for seed, value in zip(seeds, values, strict=True)
        ],
    }  # fmt: skip


TWO = {"relative": (0.40, 0.42), "rope": (0.43, 0.45)}


@pytest.mark.parametrize("draw", [figures.by_length, figures.training, figures.by_position])
def test_the_legend_of_the_longest_names_lies_within_the_picture(draw, monkeypatch):
    drawn, save = [], Figure.savefig

    def saved(figure, *arguments, **options):
        drawn.append(figure)
        return save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", saved)
    longest = sorted(ENCODINGS, key=len)[-7:]
    draw(results(dict.fromkeys(longest, (0.4, 0.5))))
    (figure,) = drawn
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


@pytest.mark.parametrize("draw", [figures.by_length, figures.training, figures.by_position])
def test_every_encoding_of_the_lab_has_a_look_of_its_own(draw, monkeypatch):
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (drawn.append(figure), save(figure, *a, **k)))
    draw(results(dict.fromkeys(ENCODINGS, (0.4, 0.5))))
    axes = drawn[0].axes[0]
    handles, names = axes.get_legend_handles_labels()
    assert {*ENCODINGS, "n-gram"} == set(names)
    lines = [getattr(handle, "lines", [handle])[0] for handle in handles]
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(ENCODINGS) + 1


class Links(HTMLParser):
    """Every reference of a page that a browser would follow by itself, and its text."""

    def __init__(self):
        super().__init__()
        self.found, self.text, self.open = [], "", []

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data", "srcset")]
        assert tag not in ("script", "link", "iframe", "object", "embed"), tag

    def handle_data(self, data):
        self.text += data


def read(html):
    links = Links()
    links.feed(html)
    return links


def test_it_asks_nothing_of_the_outside():
    written = page(results(TWO))
    assert all(link.startswith("#") for link in read(written).found)
    assert not re.search(r"@import|url\((?!#)", written)


def test_it_shows_every_figure():
    text = read(page(results(TWO))).text
    for shown in ("0.410 ± 0.014", "0.440 ± 0.014", "0.500", "0.4000", "0.4200", "Huang et al. 2018", "n-gram"):
        assert shown in text, shown
    for shown in ("A <fast> one", "GPU & Co", "torch 2", "5,000 parameters", "3 test pieces", "2 position encodings"):
        assert shown in text, shown
    command = (
        "relattn-lab compare --encodings relative,rope --steps 20 --seeds 0,1 --data chorales --length 16 --width 8"
    )
    assert command in text


def test_it_says_how_the_work_was_shared():
    shared = results(TWO)
    for run, processes in zip(shared["runs"], (2, 2, 4, 4), strict=True):
        run["processes"] = processes
    shared["settings"] |= {"batch": 4, "dropout": 0.1}
    told = (
        "2 processes, each with 2 windows of a step's 4; 4 processes, each with 1 window of a step's 4, 2 threads "
        "each; steps and losses are those of one process up to rounding, each token evaluated once, but for "
        "dropout, which every process draws by itself"
    )
    assert told in read(page(shared)).text
    shared["settings"] |= {"context_parallel": 2, "dropout": 0.0}
    text = read(page(shared)).text
    assert "4 processes, each with one of 2 parts of 2 windows of a step's 4, 2 threads each" in text
    assert "but for dropout" not in text


def test_the_command_can_be_pasted_into_a_shell():
    asked = results(TWO)
    asked["settings"]["data"] = "my songs/it's.json"
    command = html.unescape(re.search(r"<code>(relattn-lab compare .*?)</code>", page(asked)).group(1))
    words = shlex.split(command)
    assert words[words.index("--data") + 1] == "my songs/it's.json"


def test_it_says_what_the_ngram_sees_more():
    text = read(page(results(TWO))).text
    assert "The n-gram also gets the place in the beat and the few steps before the window, which the models" in text


def test_one_seed_has_no_spread():
    text = read(page(results({"relative": (0.4,)}, seeds=(0,)))).text
    assert "±" not in text
    assert "1 seed," in text


def test_three_pictures_take_their_ink_from_the_page():
    written = page(results(TWO))
    pictures = re.findall(r"<svg.*?</svg>", written, flags=re.DOTALL)
    assert len(pictures) == 3
    for picture in pictures:
        assert "currentColor" in picture
        assert "#010203" not in picture
        for name in ("relative", "rope", "n-gram"):
            assert f">{name}</text>" in picture


def test_the_same_results_make_the_same_page():
    assert page(results(TWO)) == page(results(TWO))


def test_it_says_what_a_name_means_and_what_the_lab_adds():
    text = read(page(results({"relative-heads": (0.4, 0.4), "shaw": (0.4, 0.4), "rope": (0.4, 0.4)}))).text
    assert "relative-heads: a row for every offset, a table for each head, beyond=clamp;" in text
    assert "shaw: clipped relative keys and values, max_distance=[15, 0]; rope: rotated queries and keys" in text


@pytest.mark.parametrize(
    ("losses", "options", "said"),
    [
        (TWO, {}, "Every model is below the n-gram's 0.500"),
        (TWO, {"ngram": 0.3}, "No model is below the n-gram's 0.300 yet"),
        (
            TWO,
            {"ngram": 0.43},
            "Below the n-gram's 0.430: relative. Not below it, and so hardly to be judged yet: rope.",
        ),
        (TWO, {}, "relative is lowest, 0.030 nats below rope. That is more than the seeds' spread."),
        (
            {"a": (0.30, 0.50), "b": (0.41, 0.43)},
            {},
            "a is lowest, 0.020 nats below b. That is within the seeds' spread.",
        ),
        ({"a": (0.4,), "b": (0.5,)}, {"seeds": (0,)}, "With a single seed there is no telling"),
        (TWO, {"longer": -0.05}, "From windows of 16 to 64 tokens the loss changes by: relative -0.050; rope -0.050."),
        (TWO, {"longer": 0.07}, "changes by: relative +0.070; rope +0.070."),
    ],
)
def test_what_it_says(losses, options, said):
    assert said in " ".join(sentences(results(losses, **options)))


def test_one_encoding_is_not_ranked():
    assert "is lowest" not in " ".join(sentences(results({"relative": (0.4, 0.5)})))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("ngram", "best"), [(0.5, "n-gram"), (0.7, "rope")])
def test_the_best_row_is_the_lowest_of_all(ngram, best):
    text = page(results({"relative": [0.65, 0.67], "rope": [0.61, 0.63]}, ngram=ngram))
    (marked,) = re.findall(r'<tr class="best"><td>([^<]*)</td>', text)
    assert marked == best
