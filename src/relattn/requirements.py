"""The requirements of relattn: Python and three packages, each from a version on; one sentence where one is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys

PYTHON = (3, 11)
PACKAGES = {"torch": (2, 6), "numpy": (1, 26), "jaxtyping": (0, 2, 25)}
"""The oldest version of each that the tests pass with; pyproject.toml says the same to pip."""


def check() -> None:
    """Raise where Python or a package is missing or too old. It imports nothing for this check.

    Raises ModuleNotFoundError: for a package that is not installed; ImportError: for one that is too old, and for an
    old Python.
    """
    if sys.version_info < PYTHON:
        raise ImportError(
            f"relattn: got Python {sys.version_info[0]}.{sys.version_info[1]}; expected {_shown(PYTHON)} or later; "
            "make an environment of a newer one"
        )
    for package, least in PACKAGES.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(
                    f"relattn: got a Python without {package}; expected {package} {_shown(least)} or later; install "
                    f"it: pip install '{package}>={_shown(least)}'",
                    name=package,
                ) from None
            continue  # built by hand, without version metadata
        if _numbers(found) < least:
            raise ImportError(
                f"relattn: got {package} {found}; expected {package} {_shown(least)} or later; install it: "
                f"pip install '{package}>={_shown(least)}'",
                name=package,
            )


def _numbers(version: str) -> tuple[int, ...]:
    """2.6.0+cpu as (2, 6, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
