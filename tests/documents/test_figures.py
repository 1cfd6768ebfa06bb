"""README, docs and the pages of results say what the files of figures say."""

import re

import pytest

from measure import figures, pages
from measure.pages import Place
from measure.studies.catalogue import CATALOGUE, study_of


def test_every_page_says_what_the_files_say():
    stale = [str(path.relative_to(pages.ROOT)) for path, text in pages.pages() if path.read_text() != text]
    assert not stale, "python -m measure.pages"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_file_of_figures_holds_all_that_its_study_measures(name):
    if (pages.RESULTS / f"{name}.json").exists():
        assert set(figures.kept(name).figures) == set(study_of(name).measurements)


def test_the_picture_shows_the_figures(tmp_path):
    made = study_of("hugging-face")
    made.draw(figures.kept("hugging-face").ordered(made), tmp_path)
    assert (tmp_path / "hugging-face.svg").read_text() == (pages.RESULTS / "hugging-face.svg").read_text()


@pytest.mark.parametrize(
    ("reason", "said"),
    [("FlexAttention has no backward on a CPU", ""), ("one step takes longer than 5 s at L=4096", "gave up"),
     ("needs more memory than there is", "gave up"), ("needs 14.0 GiB or more", "gave up")],
)  # fmt: skip
def test_what_stands_where_there_is_no_time(reason, said):
    assert figures.not_timed(reason) == said


def test_an_error_of_a_peer_does_not_become_a_figure():
    with pytest.raises(ValueError, match="is not installed"):
        figures.not_timed("x-transformers is not installed")


def test_a_figure_that_is_not_there_once_is_refused(monkeypatch):
    monkeypatch.setattr(pages, "places", lambda: iter([Place("README.md", "| no such row | {} |", lambda: ["1"])]))
    with pytest.raises(ValueError, match=re.escape("README.md: found 0 times, expected once: | no such row | {} |")):
        list(pages.pages())


def test_a_changed_figure_is_seen(monkeypatch):
    """Breaking one on purpose: the page that has it is no longer what the files say."""
    place = next(each for each in pages.places() if each.page == "README.md")
    monkeypatch.setattr(pages, "places", lambda: iter([place._replace(figures=lambda: ["1", "2", "3"])]))
    (changed,) = [text for path, text in pages.pages() if path.name == "README.md" and path.parent == pages.ROOT]
    assert changed != (pages.ROOT / "README.md").read_text()
    assert place.template.format("1", "2", "3") in changed
