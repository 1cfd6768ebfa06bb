"""Answers and gradients of a function of arrays, on whichever backend Keras runs on; NumPy in, NumPy out."""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

BACKEND = keras.backend.backend()

Arrays = Mapping[str, Any]


@contextmanager
def precision(dtype: str):
    """JAX has float64 only where it is asked for."""
    if BACKEND == "jax" and dtype == "float64":
        import jax

        with jax.enable_x64(True):
            yield
    else:
        yield


def numpy_of(tensor: Any) -> np.ndarray:
    """A tensor's numbers in float64."""
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float64") if BACKEND != "jax" else tensor)).astype(float)


def answer_and_gradients(
    function: Callable[[dict[str, Any]], Any], arrays: Arrays, cotangent: np.ndarray
) -> tuple[Any, dict[str, Any]]:
    """function(tensors), and the gradient of <cotangent, answer> by every array, zero for one that takes no part."""
    tensors = {name: ops.convert_to_tensor(array, dtype=array.dtype.name) for name, array in arrays.items()}
    if BACKEND == "jax":
        import jax

        answer, backward = jax.vjp(jax.jit(function), tensors)
        return answer, backward(ops.convert_to_tensor(cotangent, dtype=answer.dtype))[0]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            answer = function(tensors)
        upstream = tf.cast(cotangent, answer.dtype)
        return answer, tape.gradient(answer, tensors, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    import torch

    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    answer = function(leaves)
    upstream = torch.as_tensor(cotangent, dtype=answer.dtype)
    found = torch.autograd.grad(answer, list(leaves.values()), upstream, allow_unused=True, materialize_grads=True)
    return answer, dict(zip(leaves, found, strict=True))


def with_weights(layer: Any, tensors: Arrays, prefix: str = "") -> Any:
    """A scope in which every weight of `layer` has the value of the tensor of its name."""
    pairs = [(weight, tensors[prefix + weight.name]) for weight in layer.weights if prefix + weight.name in tensors]
    return keras.StatelessScope(state_mapping=pairs)
