"""Builds the native kernels: one shared library beside the package, for every Python and every torch.

It needs a C++ compiler and nothing of torch's. Where there is none, the package installs without it.
"""

import os
import re
import runpy
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

HOME = ""
"""The project's address, as in https://github.com/OWNER/relattn; empty while it has none."""

RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")

KERNELS = Path("src/relattn/backends/cpu/kernels")
FLAGS = ["-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=default"]
SETS = {
    "avx512bf16": ["-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "avx2": ["-march=x86-64-v3"],
    "generic": [],
}
"""The compiler's flags for each instruction set; away from x86-64 there is the generic one alone."""


@contextmanager
def heard() -> Iterator[list[str]]:
    """What processes write to stderr meanwhile: passed on at the end, and there to be read in the list."""
    found: list[str] = []
    with tempfile.TemporaryFile() as kept:
        stderr = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            found.append(kept.read().decode(errors="replace"))
            sys.stderr.write(found[0])


class BuildKernels(build_ext):
    """Compiles kernels.cpp for each instruction set, and links all into one library without a Python in its name.

    The package installs without a compiler. What the compiler said is kept beside the place of the library, for
    `relattn doctor`.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        failure = self.failure(ext)
        failure.unlink(missing_ok=True)
        try:
            with heard() as said:
                self.build_kernels(ext)
        except (CompileError, LinkError) as error:
            failure.parent.mkdir(parents=True, exist_ok=True)
            failure.write_text(f"{said[0]}{error}\n")
            raise

    def failure(self, ext: Extension) -> Path:
        """Where the compiler's message is kept: beside the place of the library."""
        return Path(self.get_ext_fullpath(ext.name)).with_suffix(".failed")

    def copy_extensions_to_source(self) -> None:
        """Of an editable install: the library, or the message in its place."""
        super().copy_extensions_to_source()
        for ext in self.extensions:
            beside = self.failure(ext)
            built = Path(self.build_lib) / beside.relative_to(Path("src").absolute())
            beside.unlink(missing_ok=True)
            if built.exists():
                shutil.copy(built, beside)

    def build_kernels(self, ext: Extension) -> None:
        """All objects and the library; raises what the compiler said."""
        x86 = sysconfig.get_platform().endswith(("x86_64", "amd64"))  # what is built for, maybe another machine
        build = Path(self.build_temp)
        digest = runpy.run_path(str(KERNELS.with_name("sources.py")))["digest"]
        objects = []
        for name in SETS if x86 else ("generic",):
            objects += self.compiler.compile(
                [str(KERNELS / "kernels.cpp")], output_dir=str(build / name), macros=[("RELATTN_SET", name)],
                extra_postargs=[*FLAGS, *SETS[name]], depends=[str(file) for file in KERNELS.glob("*.h")],
            )  # fmt: skip
        objects += self.compiler.compile(
            [str(KERNELS / "dispatch.cpp"), str(KERNELS / "threads.cpp")], output_dir=str(build),
            macros=[("RELATTN_SOURCES", f'"{digest(KERNELS)}"')], extra_postargs=FLAGS,
        )  # fmt: skip
        self.compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name), target_lang="c++")


def long_description(readme: str, home: str) -> str:
    """The README as a package index shows it, where relative links lead nowhere.

    With a home they become absolute. Without one their words stay, and pictures are left out.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        if home:
            return f"{picture}[{words}]({home}/{'raw' if picture else 'blob'}/main/{target})"
        return "" if picture else words

    return RELATIVE_LINK.sub(absolute, readme)


def urls(home: str) -> dict[str, str]:
    """The links beside the description."""
    if not home:
        return {}
    return {"Homepage": home, "Changelog": f"{home}/blob/main/CHANGELOG.md", "Issues": f"{home}/issues"}


class WheelOfAnyPython(bdist_wheel):
    """The library is asked through ctypes: it is made for a platform, not for a Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":
    setup(
        long_description=long_description(Path("README.md").read_text(encoding="utf-8"), HOME),
        long_description_content_type="text/markdown",
        project_urls=urls(HOME),
        ext_modules=[Extension("relattn.backends.cpu._kernels", [str(KERNELS / "kernels.cpp")], optional=True)],
        cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelOfAnyPython},
    )
