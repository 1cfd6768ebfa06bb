"""The backends: each computes the whole score equation, or says why it cannot."""
