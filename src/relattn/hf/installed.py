"""transformers, in a version whose names `relattn.hf` knows, or one sentence that says what is missing."""

from __future__ import annotations

from relattn.errors import UnsupportedError, not_installed

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name == "transformers":
        raise not_installed("transformers", "hf") from None
    raise

TESTED = ((5, 23), (6,))
"""The first version of transformers that relattn works with, and the first that it does not know."""


def _version() -> tuple[int, ...]:
    """Major and minor of the installed version."""
    return tuple(int(part) for part in transformers.__version__.split(".")[:2])


def another_version() -> str:
    """The sentence for a version that relattn is not tested with."""
    first, end = (".".join(map(str, version)) for version in TESTED)
    return (
        f"transformers: version {transformers.__version__} is installed, and relattn.hf is tested with {first} and "
        f"later below {end}; install 'transformers>={first},<{end}'"
    )


def check_version() -> None:
    """For `patch`, which replaces modules by name and signature: an untested version could break them silently.

    Raises UnsupportedError: when the installed transformers is none that relattn is tested with.
    """
    first, end = TESTED
    if not first <= _version() < end:
        raise UnsupportedError(another_version())


if _version() < TESTED[0]:  # older ones lack names that the modules beside this one import
    raise ImportError(another_version(), name="transformers")
