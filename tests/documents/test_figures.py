"""README, docs and the pages of results say what the files of figures say."""

import re

import pytest

from benchmarks import pages
from benchmarks.pages import Place
from relattn.bench.studies.catalogue import CATALOGUE, study_of


def test_every_page_says_what_the_files_say():
    stale = [str(path.relative_to(pages.ROOT)) for path, text in pages.pages() if path.read_text() != text]
    assert not stale, "python -m benchmarks.pages"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_file_of_figures_holds_all_that_its_study_measures(name):
    if (pages.RESULTS / f"{name}.json").exists():
        assert set(pages.kept(name).figures) == set(study_of(name).measurements)


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
