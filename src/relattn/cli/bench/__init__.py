"""`relattn bench`: the time of every backend on a shape of one's own, beside PyTorch's attention."""
