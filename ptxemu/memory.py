"""Global memory: what was handed over, at addresses so far apart that a wrong one hits nothing."""

from __future__ import annotations

import numpy as np
import torch

from ptxemu.fault import Fault
from ptxemu.kinds import unsigned

APART = 2**40
"""Bytes from one storage's address to the next: more than any of them has, and than 32 bits can say."""


class Memory:
    """The storages of tensors, whatever their strides: read and written where they lie."""

    def __init__(self) -> None:
        self._storages: dict[int, np.ndarray] = {}
        self._places: dict[int, int] = {}

    def address(self, tensor: torch.Tensor) -> int:
        """Of the tensor's first element; one storage has one place."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._places:
            place = len(self._storages) + 1
            self._places[storage.data_ptr()] = place
            self._storages[place] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        return self._places[storage.data_ptr()] * APART + int(tensor.storage_offset()) * tensor.element_size()

    def load(self, addresses: np.ndarray, unit: int, count: int) -> np.ndarray:
        """[addresses, count] units of so many bytes.

        Raises Fault: where an address is no multiple of what is read there, or any of it lies outside of a storage.
        """
        found = np.empty((len(addresses), count), unsigned(unit))
        for rows, units, index in self._parts(addresses, unit, count):
            found[rows] = units[index]
        return found

    def store(self, addresses: np.ndarray, bits: np.ndarray) -> None:
        """Bits [addresses, count]; faults are those of `load`."""
        for rows, units, index in self._parts(addresses, bits.itemsize, bits.shape[1]):
            units[index] = bits[rows]

    def add(self, addresses: np.ndarray, numbers: np.ndarray) -> None:
        """float32 numbers [addresses, count], one address after the other; faults are those of `load`."""
        for rows, units, index in self._parts(addresses, 4, numbers.shape[1]):
            np.add.at(units.view(np.float32), index, numbers[rows])

    def _parts(self, addresses: np.ndarray, unit: int, count: int):
        """By storage: which addresses lie there, the storage in units, and the units [addresses, count] in it."""
        size = unit * count
        if (addresses % size).any():
            raise Fault(f"global address {addresses[addresses % size != 0][0]:#x} is no multiple of {size}")
        places, within = addresses // APART, addresses % APART
        left = np.ones(len(addresses), bool)
        while left.any():
            place = places[np.argmax(left)]
            rows = places == place
            left &= ~rows
            raw = self._storages.get(int(place), np.empty(0, np.uint8))
            outside = within[rows] + size > len(raw)
            if outside.any():
                wrong = addresses[rows][np.argmax(outside)]
                raise Fault(f"{size} bytes at global address {wrong:#x} lie outside of what was handed over")
            units = raw[: len(raw) // unit * unit].view(unsigned(unit))
            yield rows, units, within[rows][:, None] // unit + np.arange(count)
