"""How the commands show their help, answer values after flags, and read lists."""

from __future__ import annotations

import inspect
import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from relattn.cli.console import TYPED

SWITCHES = ("true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n")


def unwrapped(text: str | None) -> str:
    """A docstring whose paragraphs are one line each, for the terminal to wrap."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text or ""))


def names(text: str | None) -> tuple[str, ...] | None:
    """The names between commas."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def numbers(name: str, text: str, such_as: str) -> tuple[int, ...]:
    """The whole numbers between commas.

    Raises ValueError: for anything else; name: of the option.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"{name}: got {text!r}; expected whole numbers separated by commas, such as {such_as}"
        ) from None


class _Flags:
    """Flags without a type in the help, one sentence for a flag with a value, and options as they are typed."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [name for param in self.get_params(ctx) for name in param.opts if name.startswith("--")]
        TYPED.set({name.removeprefix("--").replace("-", "_"): name for name in options})
        flags = [name for param in self.get_params(ctx) if getattr(param, "is_flag", False) for name in param.opts]
        for word, after in zip(args, [*args, ""][1:], strict=True):
            name, equals, value = word.partition("=")
            value = value if equals else after
            if name in flags and (equals or value.lower() in SWITCHES):
                ctx.fail(f"{name}: got {value!r} with it; expected no value; give {name} alone, or leave it out for no")
        return super().parse_args(ctx, args)  # pyright: ignore[reportAttributeAccessIssue]


class Command(_Flags, TyperCommand):
    """A command of `relattn`."""


class Group(_Flags, TyperGroup):
    """`relattn` itself."""
