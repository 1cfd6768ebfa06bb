"""Builds the native kernels: one shared library beside the package, for every Python and every torch.

It needs a C++ compiler and nothing of torch's. Where there is none, the package installs without it.
"""

import platform
import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("src/relattn/backends/native/kernels")
FLAGS = ["-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=default"]
SETS = {
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "avx2": ["-march=x86-64-v3"],
    "generic": [],
}
"""The compiler's flags for each instruction set; away from x86-64 there is the generic one alone."""


class BuildKernels(build_ext):
    """Compiles kernels.cpp for each instruction set, and links all into one library without a Python in its name."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        x86 = platform.machine().lower() in ("x86_64", "amd64")
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
        self.compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name), target_lang="c++", libraries=["dl"])


class WheelOfAnyPython(bdist_wheel):
    """The library is asked through ctypes: it is made for a platform, not for a Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("relattn.backends.native._kernels", [str(KERNELS / "kernels.cpp")], optional=True)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelOfAnyPython},
)
