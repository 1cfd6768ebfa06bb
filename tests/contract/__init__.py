"""One suite for every encoding and every backend: a new one inherits it by one line in `cases`.

settings    what a call may ask for: shapes, positions, masks, scale; drawn by hypothesis or by a random generator
cases       the registry of encodings (and sums, and ScoreTerms made by hand), each beside its oracle
subject     one call: tensors, the encoding under test, the oracle and the plain formula on the same numbers
plain       the plain PyTorch formula, whose own error the budget doubles, and the magnitudes of the budget
check       the comparison: outputs, lse and every gradient of a backend against the oracle
calls       calls and comparisons for tests that hold two ways of computing one thing against each other
blocks      the backends under test, `blocks` in small blocks
fresh       the backend that a test runs on, whose small blocks are the test's own
"""
