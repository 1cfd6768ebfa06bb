"""The practical tool on top of relattn: train, compare and compose."""

__version__ = "0.1.0"
