"""What `import relattn.keras` says where Keras, its backend or its version is not what it needs."""

import os
import subprocess
import sys

import pytest

BLOCK = """
import sys, types
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])
sys.meta_path.insert(0, Blocker())
{before}
import relattn
try:
    relattn.keras
except ImportError as error:
    print(type(error).__name__, error, sep=": ")
"""


def said(blocked: tuple[str, ...] = (), before: str = "", backend: str = "jax") -> str:
    program = BLOCK.format(blocked=blocked, before=before)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "KERAS_BACKEND": backend}
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"blocked": ("keras",)},
            "ModuleNotFoundError: relattn.keras: keras is not installed; install it with pip install '.[keras]' in a "
            "clone of relattn",
        ),
        (
            {"blocked": ("jax",)},
            "ModuleNotFoundError: relattn.keras: Keras cannot start its backend, for 'jax' is not installed; install "
            "it, or set the environment variable KERAS_BACKEND to 'tensorflow', 'jax' or 'torch' before Python starts",
        ),
        *(
            (
                {"before": f"keras = sys.modules['keras'] = types.ModuleType('keras'); keras.__version__ = {old!r}"},
                f"ImportError: relattn.keras: got Keras {old}; expected 3.15 or later below 4: pip install "
                "'.[keras]' in a clone of relattn",
            )
            for old in ("2.15.0", "3.14.1", "4.0.0")
        ),
        (
            {
                "before": "keras = sys.modules['keras'] = types.ModuleType('keras'); keras.__version__ = '3.15.1'\n"
                "keras.ops = None; keras.backend = types.SimpleNamespace(backend=lambda: 'numpy')"
            },
            "ImportError: relattn.keras: got the Keras backend 'numpy'; expected one of 'tensorflow', 'jax', 'torch': "
            "set the environment variable KERAS_BACKEND before Python starts",
        ),
    ],
)
def test_one_sentence(arguments, sentence):
    assert said(**arguments) == sentence


@pytest.mark.slow
def test_nothing_is_said_where_all_is_there():
    assert said() == ""
