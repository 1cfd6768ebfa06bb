"""Small made-up pieces."""

import numpy as np

from relattn_lab.voices.pieces import Piece
from tests import seeds

LOW = np.array([60, 55, 48, 40])


def random_steps(random: np.random.Generator, length: int, silence: float = 0.1) -> np.ndarray:
    """Four voices that hold a pitch for some steps, jump, and are sometimes silent: int16 [length, 4]."""
    steps = np.empty((length, 4), dtype=np.int16)
    for voice in range(4):
        pitch = LOW[voice]
        for step in range(length):
            if random.random() < 0.4:
                pitch = -1 if random.random() < silence else LOW[voice] + random.integers(0, 12)
            steps[step, voice] = pitch
    return steps


def random_pieces(seed: int, lengths: list[int], silence: float = 0.1) -> list[Piece]:
    random = seeds.generator(seed)
    return [
        Piece(f"piece {index}", random_steps(random, length, silence), upbeat=index % 4)
        for index, length in enumerate(lengths)
    ]
