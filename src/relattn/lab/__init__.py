"""The practical tool on top of the library: train, compare and compose (extra `lab`)."""
