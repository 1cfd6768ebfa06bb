"""Text: a file, byte by byte."""
