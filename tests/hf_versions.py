"""The tests of relattn.hf under other versions of transformers.

    python -m tests.hf_versions

For each version of hf_versions.toml: a folder with it, and with what it needs in another version than constraints.txt
has; the models of tests/peers/cases and the tests, with that folder before this environment's; and a line in the table
of docs/hf.md. A test of a family that the version has not got, or has in another form, must fail for just that reason;
and so must one with the mark `since`, whose original cannot do before that version what is compared. How many do so is
written down, too. Ends with 1 where a test fails for another reason, or other models are changed than
`relattn.hf.models.SINCE` tells.
"""

import datetime
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.versions import FAST

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "transformers"
PAGE = ROOT / "docs" / "hf.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)


def main() -> int:
    """Run those that are named, or all."""
    environments = tomllib.loads((ROOT / "hf_versions.toml").read_text())["environment"]
    named = [one for one in environments if one["version"] in sys.argv[1:]] or environments
    return max(tried(one["version"], one.get("needs", [])) for one in named)


def tried(version: str, needs: list[str]) -> int:
    """Make the folder of a version, run what is to run in it, and write its line."""
    folder = WORK / version
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, f"transformers=={version}", *needs], check=True)
    paths = os.pathsep.join([str(ROOT / "src"), str(folder)])
    environment = {**os.environ, "PYTHONPATH": paths}
    models = said([sys.executable, "-m", "tests.peers.other_versions"], environment)
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.hf_versions"]
    tests = said([*suite, "-m", FAST, "tests/hf"], environment)
    (WORK / f"{version}.log").write_text(models.stdout + models.stderr + tests.stdout + tests.stderr)
    counts = dict(re.findall(r"^(changed|left|unknown): (\d+)", models.stdout, re.MULTILINE))
    outcome = re.sub(r"^=+ |(, \d+ (deselected|warnings?))| in [\d.]+s.*", "", tests.stdout.strip().splitlines()[-1])
    write(version, counts, outcome)
    return int(models.returncode != 0 or tests.returncode != 0)


def said(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command at the root, and keep what it says."""
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def write(version: str, counts: dict[str, str], outcome: str) -> None:
    """The line of a version in the table of docs/hf.md."""
    page = PAGE.read_text()
    head, rule, *lines = TABLE.search(page)[0].strip().splitlines()
    changed, left, unknown = (counts.get(kind, "0") for kind in ("changed", "left", "unknown"))
    cells = (
        version,
        changed,
        left,
        unknown,
        outcome.replace("xfailed", "not in this version"),
        str(datetime.date.today()),
    )
    rows = {line.split("|")[1].strip(): line for line in lines} | {version: f"| {' | '.join(cells)} |"}
    ordered = sorted(rows, key=lambda one: [int(part) for part in one.split(".")], reverse=True)
    table = "\n".join([head, rule, *(rows[one] for one in ordered)]) + "\n"
    PAGE.write_text(TABLE.sub(lambda _: table, page))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """As a plugin: a test that fails for want of a family, or of what its mark tells, is expected to."""
    report = yield
    needed = older_than_its_mark(item)
    if report.failed and call.excinfo is not None:
        error = call.excinfo.value
        # `refused` says that another sentence came, which is the error's context.
        lacking = [family for each in (error, error.__context__) if (family := wanting(each))]
        if lacking or (needed and re.search(needed, f"{type(error).__name__}: {error}")):
            report.outcome, report.wasxfail = "skipped", f"this transformers wants {' '.join(lacking) or needed}"
    return report


def older_than_its_mark(item: pytest.Item) -> str | None:
    """What a test says under an older version than its mark `since` tells; None where the version is not older."""
    from relattn.hf.installed import VERSION, release

    mark = item.get_closest_marker("since")
    return mark.args[1] if mark is not None and release(mark.args[0]) > release(VERSION) else None


def wanting(error: BaseException | None) -> str | None:
    """The family that the version has not got, or has in another form, if this is what an error says."""
    from relattn.hf.installed import VERSION, release
    from relattn.hf.models import SINCE

    told = (
        r"lacks what relattn needs of (\w+): " if isinstance(error, RuntimeError) else r"'transformers\.models\.(\w+)"
    )
    found = re.search(told, str(error)) if isinstance(error, RuntimeError | ModuleNotFoundError) else None
    return found[1] if found and release(SINCE.get(found[1], "0.0")) > release(VERSION) else None


if __name__ == "__main__":
    sys.exit(main())
