"""transformers, in a version that has the names of `relattn.hf`, or one sentence that says what is missing."""

from __future__ import annotations

from relattn.errors import not_installed

FIRST = "5.0"
"""The oldest version that has the interfaces of attention and masks as `relattn.hf` uses them. Further needs of a
family of models are checked when it is patched.
"""

try:
    import transformers
except ModuleNotFoundError as error:
    if error.name == "transformers":
        raise not_installed("transformers", "hf") from None
    raise

if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < tuple(map(int, FIRST.split("."))):
    raise ImportError(
        f"transformers: version {transformers.__version__} is installed, and relattn.hf needs {FIRST} or later; "
        f"install 'transformers>={FIRST},<6'",
        name="transformers",
    )
