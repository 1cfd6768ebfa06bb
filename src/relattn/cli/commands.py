"""How commands are declared, show their help, and read values; for `relattn` and `relattn-lab`."""

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from relattn.cli.console import TYPED, out

SWITCHES = ("true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n")


def unwrapped(text: str | None) -> str:
    """A docstring whose paragraphs are one line each, for the terminal to wrap."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text or ""))


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
    """A command of an app."""


class Group(_Flags, TyperGroup):
    """The app itself."""


def new_app(program: str, version: str, about: str) -> typer.Typer:
    """An app that has no commands yet, and says its version. about: the help of the whole."""
    app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    def show_version(asked: bool) -> None:
        if asked:
            out.print(f"{program} {version}")
            raise typer.Exit

    @app.callback(help=about)
    def whole(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        pass

    return app


def command_of(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the function as a command of `app`, with its docstring as the help."""
    return lambda function: app.command(cls=Command, help=unwrapped(function.__doc__))(function)


def names(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def numbers(name: str, text: str, such_as: str) -> tuple[int, ...]:
    """Whole numbers separated by commas.

    Raises ValueError: for anything else; name: the option, such_as: an example.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"{name}: got {text!r}; expected whole numbers separated by commas, such as {such_as}"
        ) from None
