"""The explorer and the animation in Chromium: numbers of the test vectors and of relattn, controls that work."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relattn
from relattn.backends.dense import skew
from tests.site.browser import NARROW, SITE, WIDE, chromium, move, show, titles
from tests.test_vectors import FOLDER, load, module_of

ROOT = Path(__file__).parent.parent.parent
MADE = runpy.run_path(str(ROOT / "docs" / "explorer" / "make_numbers.py"), run_name="read")
VECTORS = [
    "none", "relative", "shaw_keys", "transformer_xl", "transformer_xl_interleaved", "alibi_4_heads", "alibi_3_heads",
    "alibi_signed", "kerple_log", "kerple_power", "sandwich", "rope", "rope_interleaved", "rope_linear", "deberta",
    "deberta_buckets",
]  # fmt: skip
"""The files whose encoding stands alone on the sequence, with as many queries as keys."""
WAYS = ("gather", "pad_reshape", "diagonals", "strided")
SUMS = 1e-12
"""Some hundred roundings of 2^-53 in numbers of a few units."""
SHOWN = 0.5e-2
"""Half of the third digit, where it is smallest: what a cell says."""
KEPT = 1e-3
"""What the five digits of numbers.js leave of a score: 16 products below 4, each off by 2 times 0.5e-5 at most."""


def test_the_numbers_are_written_by_their_script(tmp_path: Path) -> None:
    MADE["main"](tmp_path / "numbers.js")
    assert (tmp_path / "numbers.js").read_text() == (ROOT / "docs" / "explorer" / "numbers.js").read_text()


def test_the_slopes_are_those_of_the_paper() -> None:
    assert MADE["CHOICES"]["AlibiBias"].parameters["slope"] == tuple(relattn.offsets.alibi_slopes(8))


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as one:
        yield one


@pytest.mark.site
@pytest.mark.parametrize("name", VECTORS)
def test_the_equation_gives_the_vectors(driver: Any, name: str) -> None:
    show(driver, "explorer.html")
    tensors, about = load(FOLDER / f"{name}.safetensors")
    encoding = None
    if about["encodings"]:
        (described,) = about["encodings"]
        encoding = module_of(described, tensors).double()
        encoding.load_state_dict({one: tensors[one] for one in described["parameters"]})
    query, key = tensors["query"][0], tensors["key"][0]
    for head in range(len(query)):
        symbols = MADE["lowered"](encoding, query, key, head)
        given = {one: symbols[one].tolist() for one in symbols}
        tokens = {"query": query[head].tolist(), "key": key[head].tolist()}
        for call in {"full", "causal"} & set(about["cases"]):
            scores, weights = driver.execute_script(
                "const s = relattnEquation.scores(...arguments);"
                "const finite = s.map((row) => row.map((number) => (number === -Infinity ? null : number)));"
                "return [finite, s.map(relattnEquation.softmax)];",
                tokens, given, query.shape[1], call == "causal", about["cases"][call]["scale"],
            )  # fmt: skip
            found = np.array([[-np.inf if one is None else one for one in row] for row in scores])
            np.testing.assert_allclose(found, tensors[f"{call}.scores"][0, head], rtol=SUMS, atol=SUMS)
            np.testing.assert_allclose(weights, tensors[f"{call}.weights"][0, head], rtol=SUMS, atol=SUMS)


def answers(name: str, values: list[Any], kind: str, length: int, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """What relattn adds to the scores, and its weights."""
    query, key = (one[None, None, :length] for one in MADE["tokens"]()[kind])
    encoding = MADE["with_numbers"](MADE["CHOICES"][name].make(*values))

    def scores(one: relattn.RelativeEncoding | None) -> torch.Tensor:
        _, lse = relattn.attention_and_lse(query, key, key, encoding=one)
        return relattn.attention_weights(query, key, key, encoding=one).log() + lse[..., None]

    with torch.no_grad():
        weights = relattn.attention_weights(query, key, key, encoding=encoding, is_causal=causal)
        return (scores(encoding) - scores(None))[0, 0].numpy(), weights[0, 0].numpy()


def numbers_in(said: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", said)]


def numbers(said: list[str]) -> np.ndarray:
    return np.array([float(one.rpartition(": ")[2].replace("−", "-")) for one in said])


@pytest.mark.site
@pytest.mark.parametrize("kind", ["alike", "drawn"])
@pytest.mark.parametrize("name", list(MADE["CHOICES"]))
def test_the_page_shows_what_relattn_computes(driver: Any, name: str, kind: str) -> None:
    """With every slider at its other end."""
    show(driver, "explorer.html")
    length, query, causal = 10, 6, kind == "drawn"
    move(driver, "relattn-encoding", name)
    for parameter, values in MADE["CHOICES"][name].parameters.items():
        move(driver, f"relattn-parameter-{parameter}", len(values) - 1)
    for control, value in (("tokens", kind), ("length", length), ("query", query), ("causal", causal)):
        move(driver, f"relattn-{control}", value)
    last = [values[-1] for values in MADE["CHOICES"][name].parameters.values()]
    added, weights = answers(name, last, kind, length, causal)
    found = numbers(titles(driver, "relattn-matrix")).reshape(length, length)
    np.testing.assert_allclose(found, added, rtol=SHOWN, atol=KEPT)
    mean = [added.diagonal(d).mean() for d in range(1 - length, length)]
    np.testing.assert_allclose(numbers(titles(driver, "relattn-row")), mean, rtol=SHOWN, atol=KEPT)
    np.testing.assert_allclose(numbers(titles(driver, "relattn-weights")), weights[query], rtol=SHOWN, atol=KEPT)


@pytest.mark.site
def test_a_shorter_length_takes_the_query_along(driver: Any) -> None:
    show(driver, "explorer.html")
    move(driver, "relattn-length", 4)
    assert len(titles(driver, "relattn-matrix")) == 16
    assert titles(driver, "relattn-weights")[-1].startswith("key 3: ")
    assert driver.execute_script("return document.getElementById('relattn-query').value") == "3"


def landed(driver: Any) -> dict[tuple[int, int], int]:
    """The offset of every cell that the animation has moved into the scores, by query and key."""
    script = "return [...document.querySelectorAll('.relattn-moving')].map((one) => ({...one.dataset}))"
    moved = [one for one in driver.execute_script(script) if one["place"]]
    return {tuple(map(int, one["place"].split(","))): int(one["offset"]) for one in moved}


@pytest.mark.site
def test_the_animation_fills_the_scores_diagonal_by_diagonal(driver: Any) -> None:
    show(driver, "skew_animation.html")
    length = driver.execute_script("return relattnSkew.LENGTH")
    for step in range(2 * length - 1):
        move(driver, "relattn-step", step)
        every = {(i, j): j - i for i in range(length) for j in range(length)}
        assert landed(driver) == {pair: d for pair, d in every.items() if d <= step - length + 1}


@pytest.mark.site
def test_the_animation_says_where_the_four_ways_read(driver: Any) -> None:
    """Held to relattn's own functions, on products that are their own places in memory."""
    show(driver, "skew_animation.html")
    length = driver.execute_script("return relattnSkew.LENGTH")
    rows = 2 * length - 1
    memory = torch.arange(float(length * rows)).reshape(length, rows)
    view = skew.strided_view(memory[None, None], length)[0, 0]
    padded = torch.arange(length * (length + 1)).reshape(length + 1, length)[1:]
    reversed_products = memory.flip(0)
    for d in range(1 - length, length):
        move(driver, "relattn-step", d + length - 1)
        said = {way: driver.find_element("id", f"relattn-way-{way}").text for way in WAYS}
        assert numbers_in(said["strided"]) == view.diagonal(d).int().tolist()
        on = [j for j in range(length) if set(reversed_products.diagonal(j).tolist()) & set(view.diagonal(d).tolist())]
        assert numbers_in(said["diagonals"]) == on
        if d <= 0:
            assert numbers_in(said["pad_reshape"]) == padded.diagonal(d).tolist()
        else:
            assert "no row for the future" in said["pad_reshape"]
        pairs = "; ".join(f"q{i}, k{i + d}" for i in range(length) if 0 <= i + d < length)
        assert said["gather"] == f"copies RK[{d}] for {pairs}".replace("-", "−")


@pytest.mark.site
def test_the_animation_plays(driver: Any) -> None:
    show(driver, "skew_animation.html")
    driver.find_element("id", "relattn-play").click()
    assert driver.find_element("id", "relattn-play").text == "Pause"
    assert len(landed(driver)) > 1
    driver.find_element("id", "relattn-play").click()
    assert driver.find_element("id", "relattn-play").text == "Play"


@pytest.mark.site
@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_every_page_fits_and_runs_without_an_error(driver: Any, width: int, scheme: str) -> None:
    driver.get_log("browser")
    wide = []
    for path in sorted(SITE.rglob("*.html")):
        page = str(path.relative_to(SITE))
        if path.name in ("404.html", "report.html"):
            continue
        show(driver, page, width, scheme)
        if driver.execute_script("return document.documentElement.scrollWidth") > width:
            wide.append(page)
    assert wide == []
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
