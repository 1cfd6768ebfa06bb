"""transformers, in a version that `relattn.hf` was run with or a newer one, or one sentence about what is missing."""

from __future__ import annotations

import warnings

from relattn.errors import RelattnWarning, not_installed

FIRST, LAST = "5.4", "5.24"
"""The oldest and the newest version that the tests of `relattn.hf` were run with, as pyproject.toml says for the extra
`hf`; docs/hf.md has what came of it.
"""

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name == "transformers":
        raise not_installed("transformers", "hf") from None
    raise

VERSION = transformers.__version__
"""That of the installed transformers."""


def release(version: str) -> tuple[int, ...]:
    """The numbers that say which of two versions is the newer one: those before the last point."""
    return tuple(int(part) for part in version.split(".")[:2])


if release(VERSION) < release(FIRST):
    raise ImportError(
        f"transformers: version {VERSION} is installed, and relattn.hf needs {FIRST} or later; install "
        f"'transformers>={FIRST},<={LAST}.*'",
        name="transformers",
    )
if release(VERSION) > release(LAST):
    warnings.warn(
        f"transformers: version {VERSION} is installed, newer than {LAST}, the last that relattn.hf was run with; a "
        "family of models that does not fit is left, and relattn.hf.patch says why",
        RelattnWarning,
        stacklevel=2,
    )
