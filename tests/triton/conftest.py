"""What tests in Triton's interpreter share."""

import os

if "TRITON_INTERPRET" in os.environ:
    from tests.triton import interpreter

    interpreter.prepare()
