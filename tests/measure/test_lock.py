"""Two benchmarks with one --out: the second is refused."""

from pathlib import Path

import pytest

from tests.cli.test_commands import refused
from tests.lab.test_lock import busy, holder


@pytest.mark.parametrize(
    ("asked", "folder"),
    [(["small"], ""), (["relative"], "relative"), (["--encodings", "t5", "--lengths", 64], "")],
    ids=["a study", "a grid", "a benchmark"],
)
def test_two_benchmarks_in_one_folder(asked: list[str | int], folder: str, tmp_path: Path) -> None:
    """Both would measure at once, and the same benchmark would overwrite the file of the other."""
    out = tmp_path / folder
    first = holder(out)
    assert refused("bench", *asked, "--out", tmp_path) == busy(out)
    first.communicate("")
