"""Vaswani et al. 2017, "Attention Is All You Need", equation 1: softmax(Q K^T / sqrt(d_k)) V."""

from tests.oracle.equation import Answer, Ingredients, attend
from tests.oracle.pairs import Pairs


def ingredients(query, key, pairs: Pairs, parameters) -> Ingredients:
    """Nothing is added to q . k."""
    assert not parameters, "attention without an encoding has no parameters"
    return Ingredients()


def attention(inputs, parameters, **keywords) -> Answer:
    """(output, lse, weights) of plain attention."""
    return attend(inputs, lambda query, key, pairs: ingredients(query, key, pairs, parameters), **keywords)
