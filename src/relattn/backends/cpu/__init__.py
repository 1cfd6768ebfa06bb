"""Compiled code for this machine: the C++ sources, their library, and how Python calls it."""
