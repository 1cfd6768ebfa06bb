"""Attention with relative positions as one writes it in plain PyTorch, and as other libraries compute it."""
