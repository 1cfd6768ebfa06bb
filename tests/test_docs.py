"""The documentation is true: its code runs, prints what it says, links to what exists, and the examples work.

A page is a Markdown file. Its ```python blocks run in order and share a namespace; what a block prints must stand in a
```text block right after it, and nothing else may. ```text blocks elsewhere are mistakes. Commands stand in ```sh
blocks, and their programs must take them. A code span that is a command, an option, a file or a dotted name of relattn
is a true one. Blocks that need Keras are tested in tests/keras.
"""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import relattn
from tests.documents.commands import is_command, refusal
from tests.documents.page import PAGES, ROOT, read, run
from tests.documents.spans import complaint

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
KERAS = "relattn.keras"
"""Its names need a process with Keras, which no other test may import."""
READERS = "tisa"
"""The encoding that a reader of docs/adding_an_encoding.md makes."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def untrue(page: Path) -> list[str]:
    """What is untrue of a page's code, commands and code spans."""
    run(page)
    content = read(page.read_text())
    found = [f"`{line}`: {why}" for line in content.shell if (why := refusal(line))]
    lines = [line for block in content.plain for line in block.splitlines()]
    found += [f"`{line}`: a command belongs into a ```sh block" for line in lines if is_command(line.strip())]
    spans = [span for span in dict.fromkeys(content.spans) if KERAS not in span and READERS not in span.lower()]
    return found + [f"`{span}`: {why}" for span in spans if (why := complaint(span))]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading."""
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(target)
    return broken


@pytest.fixture(autouse=True)
def _settings_of_torch_put_back():
    """A page may show how torch is told to be deterministic; the tests after it are not."""
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_of_a_page_runs_and_says_what_is_true(page, tmp_path, monkeypatch):
    (tmp_path / "vectors").symlink_to(ROOT / "vectors")
    monkeypatch.chdir(tmp_path)
    found = untrue(page)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page):
    assert broken_links(page) == []


OLD_NAMES = (
    "relattn.functional", "functional.py", "door.py", "watched.py", "spread.py", "requirements.py",
    "score/", "relattn.score", "backends/skew.py", "backends/apart.py", "backends/philox.py", "relattn.Run", "Run(",
    "Listed", "Digits", "listed positions", "leading tokens", "leading=", "nowhere=", "answers_for_leading", "Sight",
    "is_watched", "certainly", "terms_of_no_axis", "go_below_the_cap", "NEVER", '"refuse"', "'refuse'", "benchmarks/",
    "relattn.bench", "relattn.lab", "relattn.support", "relattn.compiled", "compiled/", "backends/native",
    "relattn compare", "relattn compose", "relattn reproduce", "in a fixed order", "return_lse", "tiled",
)  # fmt: skip
"""Names that the house no longer has, as whole words."""
DOCUMENTS = ["README.md", "lab/README.md", "DESIGN.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml"]


LONGEST_DESIGN = 250
"""Lines. What belongs to one file stands in its docstring."""


def test_the_design_stays_short():
    assert len((ROOT / "DESIGN.md").read_text().splitlines()) <= LONGEST_DESIGN


def old_names(text: str) -> list[str]:
    """Those that a text has."""
    ends = {name: r"(?!\w)" if name[-1].isalnum() else "" for name in OLD_NAMES}
    return [name for name in OLD_NAMES if re.search(rf"(?<!\w){re.escape(name)}{ends[name]}", text)]


def test_no_document_names_what_is_old():
    paths = [ROOT / name for name in DOCUMENTS]
    paths += [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs" / "figures").glob("*.py"),
        *(ROOT / "examples").glob("*.py"),
    ]
    found = [(path.name, old) for path in paths for old in old_names(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("grid(2, leading=1)", "leading="),
        ("`src/relattn/functional.py`", "functional.py"),
        ("score/terms.py", "score/"),
        ("Run(3)", "Run("),
        ("it asks `certainly(x)`", "certainly"),
        ("f(q, return_lse=True)", "return_lse"),
    ],
)
def test_an_old_name_is_found(text, old):
    assert old_names(text) == [old]


def test_every_public_encoding_has_a_page():
    public = [getattr(relattn, name) for name in relattn.__all__]
    encodings = [
        thing.__name__
        for thing in public
        if isinstance(thing, type)
        and issubclass(thing, relattn.RelativeEncoding)
        and thing is not relattn.RelativeEncoding
    ]
    assert len(encodings) >= 6
    titles = [page.read_text().partition("\n")[0] for page in (ROOT / "docs" / "encodings").glob("*.md")]
    assert [name for name in encodings if not any(name in title for title in titles)] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {(ROOT / "docs" / target.partition("#")[0]).resolve() for target in LINK.findall(index)}
    assert [page for page in PAGES if page.is_relative_to(ROOT / "docs" / "") and page.resolve() not in listed] == [
        ROOT / "docs" / "README.md"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "pictures", "page"),
    [
        ("draw_skew.py", "skew_*.svg", "skew.md"),
        ("draw_native.py", "native_*.svg", "native.md"),
        ("draw_units.py", "units_*.svg", "native.md"),
        ("draw_axes.py", "axes_*.svg", "axes.md"),
        ("draw_visible_blocks.py", "visible_*.svg", "packed.md"),
        ("draw_encodings.py", "encoding_*.svg", "pictures.md"),
    ],
)
def test_the_pictures_are_drawn_by_their_script(script, pictures, page, tmp_path, monkeypatch):
    figures = ROOT / "docs" / "figures"
    monkeypatch.syspath_prepend(figures)
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path)])
    runpy.run_path(str(figures / script), run_name="__main__")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in figures.glob(pictures)}
    text = (ROOT / "docs" / page).read_text()
    for path in tmp_path.iterdir():
        assert path.name in text
        assert path.read_bytes() == (figures / path.name).read_bytes(), f"{path.name} is drawn otherwise: run {script}"


def example(name: str, arguments: list[str], monkeypatch, capsys) -> str:
    """What an example prints."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return capsys.readouterr().out


def test_example_self_attention(monkeypatch, capsys):
    printed = example("self_attention.py", [], monkeypatch, capsys)
    changes = [float(line.split()[-1]) for line in printed.splitlines() if "changes by" in line or "cache, by" in line]
    assert len(changes) == 14
    assert max(changes) < 1e-5


@pytest.mark.slow
def test_example_decoder_block(monkeypatch, capsys):
    lines = example("decoder_block.py", ["--steps", "80"], monkeypatch, capsys).splitlines()
    assert lines[0].startswith("shaw: trained on 24 notes to a loss of 0.0")
    assert lines[-2:] == ["right up to note 24: 100%", "right from there to note 64: 100%"]


@pytest.mark.slow
def test_example_attention_picture(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "attention.png"
    lines = example("attention_picture.py", ["--steps", "80", "--out", str(picture)], monkeypatch, capsys).splitlines()
    assert any("looks at offset -7 most" in line for line in lines)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_every_example_is_run_and_listed():
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    page = (ROOT / "docs" / "examples.md").read_text()
    assert examples == {
        "self_attention.py", "decoder_block.py", "attention_picture.py", "keras_chorales.py", "several_devices.py",
    }  # fmt: skip
    assert all(f"## {name}" in page for name in examples)


# --- the checks above can fail ---


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(1)\n```\n```text\n2\n```\n", "prints something else"),
        ("```python\nprint(1)\n```\n", "prints something else"),
        ("```python\nx = 1\n```\n```text\n1\n```\n", "prints something else"),
        ("```python\nx = 1\n```\n```python\nassert x == 2, 'x is 1'\n```\n", "x is 1"),
        ("```text\n1\n```\n", "after no ```python block"),
        ("```python\nprint(1)\n```\nand\n```text\n1\n```\n", "after no ```python block"),
    ],
)
def test_a_page_that_lies_is_found_out(tmp_path, text, complaint):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        run(page)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("`relattn.relative_atention`", "No module named 'relattn.relative_atention'"),
        ("`relattn.nn.KVCache.trunkate(length)`", "no attribute 'trunkate'"),
        ("`relattn.hff`", "No module named 'relattn.hff'"),
        ("`src/relattn/functionnal.py`", "no such file"),
        ("`--minuttes 3`", "no command and no script has this option"),
        ("`relattn-lab compare --minuttes 3`", "No such option"),
        ("`relattn bench --encodings relative,warp`", "warp"),
        ("`python -m measure smal`", "got 'smal'; expected one of"),
        ("`python -m measure small --heads 2`", "got 'small' with --heads"),
        ("`relattn-lab compare --seeds 0,0`", "seeds"),
        ("`relattn convert a b --from transfo_xxl --to relattn`", "transfo_xxl"),
        ("`make tests`", "the Makefile has no ['tests']"),
        ("`python -m measure.gpus`", "no module measure.gpus"),
        ("`python examples/self_attention.py --encodings rope`", "has no ['--encodings']"),
        ("`pip install 'relattn[hugging]'`", "relattn has no extra hugging"),
        ("```sh\nrelatn doctor\n```", "relatn is no program that the tests know"),
        ("```sh\nrelattn bench \\\n    --length 5\n```", "No such option"),
        ("    relattn doctor\n", "a command belongs into a ```sh block"),
    ],
)
def test_what_is_untrue_is_found_out(tmp_path, text, complaint):
    page = tmp_path / "page.md"
    page.write_text(f"{text}\n")
    (said,) = untrue(page)
    assert complaint in said


def test_an_error_names_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(page)
    assert caught.traceback[-1].lineno == 4


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# The one title\n[a](page.md) [b](#the-one-title) [c](none.md) [d](page.md#other) [e](https://x.org)\n"
    )
    assert broken_links(page) == ["none.md", "page.md#other"]


def test_the_test_files_that_the_makefile_names_exist():
    text = (ROOT / "Makefile").read_text()
    named = re.findall(r"(?<![\w$/])(tests/[\w/]+\.(?:py|cpp))", text)
    for prefix, names in re.findall(r"addprefix (tests/\w+/test_),([^)]*)\)", text):
        named += [prefix + name for name in names.split()]
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []
