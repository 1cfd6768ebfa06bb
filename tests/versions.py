"""The core's fast tests under other versions of Python, torch, NumPy and jaxtyping.

    python -m tests.versions

For each environment of versions.toml: a virtual environment with those versions and relattn's wheel, the README's
code, the tests, and a line in the table of docs/versions.md. The environment is removed then, for one takes gigabytes.
What passed is kept in build/versions: an interrupted run goes on where it stopped, and begins anew where a source
has changed. Ends with 1 where a test failed.
"""

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "versions"
PAGE = ROOT / "docs" / "versions.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
BESIDE_COUNTS = re.compile(r"^=+ |(, \d+ warnings?)? in [\d.]+s.*")
FAST = "not (slow or triton or ptx or gpu or site or wrappers)"
"""As the Makefile has it."""
PACKAGES = ("torch", "numpy", "jaxtyping")
SHOWN = 300
"""Of a message that says why an environment cannot be made, so many characters."""


class CannotBeMade(Exception):
    """An environment that this machine cannot make, and why."""


def main() -> int:
    table = tomllib.loads((ROOT / "versions.toml").read_text())
    results = []
    for environment in table["environment"]:
        results.append(found(environment, table["without"]))
        write(results)
    print(TABLE.search(PAGE.read_text())[0])
    return int(any(result["failed"] for result in results))


def found(environment: dict, without: list[str]) -> dict:
    """What came of an environment, now or in a run before on the same sources."""
    kept = WORK / f"{name_of(environment)}.json"
    key = digest(environment, without)
    if kept.exists() and (result := json.loads(kept.read_text()))["key"] == key and result["passed"]:
        print(f"{name_of(environment)}: {result['outcome']}, as before", flush=True)
        return result
    result = {"key": key, **environment, "date": str(datetime.date.today()), "passed": False, "failed": False}
    print(f"{name_of(environment)} ...", flush=True)
    try:
        result |= tried(environment, without)
    except CannotBeMade as reason:
        result |= {"outcome": f"not tried: {reason}"}
    print(f"{name_of(environment)}: {result['outcome']}", flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result, indent=1))
    return result


def tried(environment: dict, without: list[str]) -> dict:
    """Make the environment, run the README's code and the tests in it, and remove it."""
    python = interpreter(environment["python"])
    wheel = built()
    home = WORK / "environment"
    shutil.rmtree(home, ignore_errors=True)
    try:
        asked([python, "-m", "venv", str(home)])
        inside = str(home / "bin" / "python")
        pip = [inside, "-m", "pip"]
        asked([*pip, "install", "--quiet", "--upgrade", "pip"])
        torch, *others = environment["packages"]
        index = ["--index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
        asked([*pip, "install", "--quiet", *index, torch])
        installed = said([*pip, "install", "--quiet", torch, *others, str(wheel)])
        if installed.returncode:
            return {"outcome": f"cannot be installed: {last_line(installed)}", "failed": True}
        with_readme = said([inside, "-I", str(ROOT / "tests" / "readme.py"), *["graphs"] * environment["graphs"]])
        asked([*pip, "install", "--quiet", torch, *others, "--group", f"{ROOT / 'pyproject.toml'}:core-test"])
        tests = said(
            [
                inside, "-m", "pytest", "-q", "-n", "logical", "--dist", "worksteal", "-p", "no:cacheprovider",
                "-m", FAST if environment["graphs"] else f"{FAST[:-1]} or graphs)",
                *(f"--ignore={path}" for path in without), "tests",
            ]
        )  # fmt: skip
        (WORK / f"{name_of(environment)}.log").write_text(tests.stdout + tests.stderr)
        return {
            "versions": versions(inside),
            "readme": with_readme.stdout.strip() if with_readme.returncode == 0 else last_line(with_readme),
            "outcome": BESIDE_COUNTS.sub("", tests.stdout.strip().splitlines()[-1])
            if tests.stdout
            else last_line(tests),
            "failed": bool(tests.returncode or with_readme.returncode),
            "passed": not (tests.returncode or with_readme.returncode),
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)


def interpreter(version: str) -> str:
    """The Python of a version, by its name on PATH."""
    program = shutil.which(f"python{version}")
    if program is None or subprocess.run([program, "--version"], capture_output=True).returncode:
        raise CannotBeMade(f"there is no Python {version} on this machine")
    return program


def built() -> Path:
    """The wheel of these sources, the same for every environment."""
    folder = WORK / "wheel"
    for stale in (folder, *(ROOT / "build").glob("lib*")):
        shutil.rmtree(stale, ignore_errors=True)
    asked([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def asked(command: list[str]) -> None:
    """Run a step of the set-up; its last line says why it failed."""
    ran = said(command)
    if ran.returncode:
        raise CannotBeMade(last_line(ran))


def last_line(ran: subprocess.CompletedProcess[str]) -> str:
    """The last error of a command that failed, as a cell of a table holds it."""
    lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
    return (lines[-1] if lines else f"ended with {ran.returncode}")[:SHOWN].replace("|", "/")


def said(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command at the root, and keep what it says."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def versions(python: str) -> dict[str, str]:
    """What is installed: Python, and the packages under test."""
    program = "import platform; from importlib.metadata import version; print(platform.python_version(), "
    program += f"*map(version, {PACKAGES}))"
    return dict(zip(("python", *PACKAGES), said([python, "-c", program]).stdout.split(), strict=True))


def digest(environment: dict, without: list[str]) -> str:
    """Of all that decides what comes of an environment."""
    whole = hashlib.sha256(json.dumps([environment, without]).encode())
    files = [ROOT / "pyproject.toml", ROOT / "setup.py", ROOT / "README.md"]
    files += [file for folder in ("src", "tests", "measure") for file in sorted((ROOT / folder).rglob("*.*"))]
    for file in files:
        if file.suffix in (".py", ".h", ".cpp", ".toml", ".md") and file.is_file():
            whole.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return whole.hexdigest()


def name_of(environment: dict) -> str:
    """Such as python3.11-torch2.6.0."""
    return f"python{environment['python']}-{environment['packages'][0].replace('==', '')}"


def write(results: list[dict]) -> None:
    """The table of docs/versions.md."""
    lines = [
        "| Python | torch | NumPy | jaxtyping | compile and export | the README's code took | tests | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in sorted(results, key=lambda result: [int(n) for n in re.findall(r"\d+", result["packages"][0])]):
        wanted = {"python": result["python"], **dict(package.split("==") for package in result["packages"])}
        shown = wanted | result.get("versions", {})
        lines.append(
            f"| {' | '.join(shown[name] for name in ('python', *PACKAGES))} | {'yes' if result['graphs'] else 'no'} | "
            f"{result.get('readme', '')} | {result['outcome']} | {result['date']} |"
        )
    table = "\n".join(lines) + "\n"
    PAGE.write_text(TABLE.sub(lambda _: table, PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main())
