"""A command line of a page: whether its program would take it. Nothing is run."""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import sys
import tomllib
from types import ModuleType
from typing import Any
from unittest import mock

import typer.main
from typer.testing import CliRunner

from measure.__main__ import app as measure_app
from measure.settings import Settings as MeasureSettings
from relattn.cli.app import app
from relattn.cli.bench.settings import Settings as BenchSettings
from relattn.convert import FORMATS
from relattn_lab.cli.app import app as lab_app
from relattn_lab.reproduction import ReproductionSettings
from relattn_lab.settings import Settings as LabSettings
from tests.documents.page import ROOT

APPS = {"relattn": app, "relattn-lab": lab_app}
COMMANDS: dict[str, dict[str, Any]] = {
    program: typer.main.get_command(one).commands  # pyright: ignore[reportAttributeAccessIssue]
    for program, one in APPS.items()
}
MEASURE: Any = typer.main.get_command(measure_app)
EVERY = [*(command for named in COMMANDS.values() for command in named.values()), MEASURE]
OPTIONS = {option for command in EVERY for one in command.params for option in one.opts} | {"--help"}
MAKEFILE = (ROOT / "Makefile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LAB = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
ELSEWHERE = {"tensorflow"}
"""Packages that a page installs by another name than pyproject.toml's."""


def refusal(line: str) -> str | None:
    """Why a command line would be refused; None where it would be taken."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["export"]:
        words = words[1:]
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if not words:
        return None
    program = words[0].removeprefix(".venv/bin/")
    if program not in PROGRAMS:
        return f"{words[0]} is no program that the tests know"
    return PROGRAMS[program](words[1:])


def is_command(line: str) -> bool:
    """Whether its first word is a program, or a variable that is set for one."""
    return re.match(rf"([A-Z_]+=\S* )*(\.venv/bin/)?({'|'.join(map(re.escape, PROGRAMS))})( (?! )|$)", line) is not None


def _ours(program: str, words: list[str]) -> str | None:
    """By the real parser; what the commands would carry out is checked and left undone."""
    commands = COMMANDS[program]
    if not words or (words[0] in commands and len(words) == 1):
        return None  # mentioned
    if words[0] in commands and len(words) == 2 and words[1] in OPTIONS:
        taken = {option for one in commands[words[0]].params for option in one.opts} | {"--help"}
        return None if words[1] in taken else f"{program} {words[0]} has no option {words[1]}"

    def check_formats(source: object, target: object, *formats: str) -> None:
        unknown = [one for one in formats if one not in (*FORMATS, "relattn")]
        if unknown:
            raise ValueError(f"no format {unknown}")

    checks = {
        "relattn_lab.cli.compare": lambda given, *_, **__: LabSettings.from_dict(given),
        "relattn_lab.cli.compose": lambda *_: None,
        "relattn_lab.cli.reproduce": lambda _, given, *__: ReproductionSettings.from_dict({"data": "jsb.json"} | given),
        "relattn.cli.bench.command": lambda given: BenchSettings(**given),
        "relattn.cli.convert": check_formats,
    }
    return _parsed(APPS[program], words, {name: {"run": check} for name, check in checks.items()})


def _measure(words: list[str]) -> str | None:
    """As `_ours`."""
    checks = {
        "run": lambda given, _: MeasureSettings(**given),
        "run_grid": lambda *_: None,
        "run_study": lambda *_: None,
    }
    return _parsed(measure_app, words, {"measure.command": checks})


def _parsed(command: typer.Typer, words: list[str], modules: dict[str, dict[str, Any]]) -> str | None:
    """What the command says against its words, with these functions in place of those that do its work."""
    stubs = {}
    for name, functions in modules.items():
        stubs[name] = ModuleType(name)
        stubs[name].__dict__.update(functions)
    with mock.patch.dict(sys.modules, stubs):
        ran = CliRunner().invoke(command, words, env={"COLUMNS": "200"})
    return None if ran.exit_code == 0 else ran.stderr or repr(ran.exception)


def _make(words: list[str]) -> str | None:
    targets = [word for word in words if "=" not in word]
    variables = [word.partition("=")[0] for word in words if "=" in word]
    unknown = [one for one in targets if not re.search(rf"^{one}:", MAKEFILE, re.MULTILINE)]
    unknown += [one for one in variables if not re.search(rf"^{one} \?=", MAKEFILE, re.MULTILINE)]
    return f"the Makefile has no {unknown}" if unknown else None


def _python(words: list[str]) -> str | None:
    if words[:2] == ["-m", "pytest"]:
        return _pytest(words[2:])
    if words[:2] == ["-m", "measure"]:
        return _measure(words[2:]) if words[2:] else None  # mentioned
    if words[0] == "-m":
        return None if importlib.util.find_spec(words[1]) else f"no module {words[1]}"
    script = ROOT / words[0]
    if not script.is_file():
        return f"no file {words[0]}"
    options = [word for word in words[1:] if word.startswith("--") and f'"{word}"' not in script.read_text()]
    return f"{words[0]} has no {options}" if options else None


def _torchrun(words: list[str]) -> str | None:
    """What it starts, in as many processes."""
    if not words:
        return None  # mentioned
    if words[:1] != ["--nproc-per-node"] or not words[1].isdigit():
        return f"torchrun {words[:2]}"
    rest = words[2:]
    return _ours("relattn-lab", rest[2:]) if rest[:2] == ["-m", "relattn_lab"] else _python(rest)


def _pytest(words: list[str]) -> str | None:
    missing = [word for word in words if "/" in word and not (ROOT / word).exists()]
    return f"no {missing}" if missing else None


def _pip(words: list[str]) -> str | None:
    if words[:1] != ["install"]:
        return f"pip {words[:1]}"
    for word in words[1:]:
        if word == "./lab":
            continue
        match = re.fullmatch(r"([\w.-]+?)(?:\[(\w+)\])?(?:==[\d.]+)?", word)
        if match is None:
            return f"pip install {word}"
        package, extra = match.groups()
        if extra is not None and extra not in PROJECT["optional-dependencies"]:
            return f"relattn has no extra {extra}"
        projects = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].values(), *LAB["dependencies"]]
        declared = str([projects, PYPROJECT["dependency-groups"]])
        if package not in (".", "relattn", *ELSEWHERE) and not re.search(f"['\"]{package}>", declared):
            return f"pyproject.toml declares no {package}"
    return None


def _known(words: list[str]) -> None:
    """A program that the pages name only with a file."""


PROGRAMS: dict[str, Any] = {
    **{program: functools.partial(_ours, program) for program in APPS},
    "make": _make,
    "python": _python,
    "pytest": _pytest,
    "pip": _pip,
    "torchrun": _torchrun,
    "source": _known,
    "accelerate": _known,
    ".ci/run": _known,
}
