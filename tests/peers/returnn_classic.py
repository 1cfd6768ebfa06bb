"""RETURNN's TensorFlow layers as a function of torch tensors, differentiable: for test_returnn_classic.py.

A graph is made once for each dtype and way to run it; a call sets its variables, runs it in a TF1 session, and the
backward pass runs TensorFlow's own gradients.

`SelfAttentionLayer` fixes its weights, its output and what a loop keeps to float32. In float64 its variables come
through TensorFlow's custom getter in the other dtype, and a subclass declares the others; the rest is its own code.
"""

from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from returnn.config import Config
from returnn.tf.layers.basic import register_layer_class
from returnn.tf.layers.rec import SelfAttentionLayer
from returnn.tf.network import ExternData, TFNetwork
from torch import Tensor

tf1 = tf.compat.v1


class DoubleSelfAttentionLayer(SelfAttentionLayer):
    """Their layer, declared to give and to keep float64."""

    layer_class = "self_attention_in_float64"

    @classmethod
    def get_out_data_from_opts(cls, **options: Any) -> Any:
        data = super().get_out_data_from_opts(**options)
        data.dtype = "float64"
        return data

    @classmethod
    def get_rec_initial_extra_outputs(cls, **options: Any) -> Any:
        state = super().get_rec_initial_extra_outputs(**options)
        return {name: tf.cast(one, tf.float64) for name, one in state.items()}


register_layer_class(DoubleSelfAttentionLayer)


def network(dtype: str, way: str, heads: int, width: int, clipping: int) -> dict[str, Any]:
    """The layers of a config: "both directions", "causal", or "step by step" in a loop over the frames."""
    source = "data:source" if way == "step by step" else "data:data"
    relative = {"class": "relative_positional_encoding", "from": source, "n_out": width, "clipping": clipping}
    attention = {
        "class": "self_attention" if dtype == "float32" else DoubleSelfAttentionLayer.layer_class,
        "from": source,
        "num_heads": heads,
        "total_key_dim": heads * width,
        "n_out": heads * width,
        "attention_left_only": way != "both directions",
        "key_shift": "relative",
    }
    layers = {"relative": relative, "output": attention}
    if way != "step by step":
        return layers
    return {"output": {"class": "rec", "from": "data:data", "unit": layers, "optimize_move_layers_out": False}}


class Graph:
    """A network ready to run: parameters by name ("QKV", "encoding_matrix"), the output and its gradients."""

    def __init__(self, dtype: str, way: str, inner: int, heads: int, width: int, clipping: int) -> None:
        def in_dtype(getter: Any, *args: Any, **options: Any) -> Any:
            if options["dtype"] == tf.float32:
                options["dtype"] = tf.as_dtype(dtype)
            return getter(*args, **options)

        graph = tf1.Graph()
        with graph.as_default(), tf1.variable_scope(tf1.get_variable_scope(), custom_getter=in_dtype):
            data = ExternData({"data": {"dim": inner, "dtype": dtype}})
            net = TFNetwork(config=Config({}), extern_data=data, train_flag=True)  # or a loop has no gradient
            net.construct_from_dict(network(dtype, way, heads, width, clipping))
            self.x = data.data["data"].placeholder
            self.lengths = data.data["data"].size_placeholder[0]
            output = net.get_default_output_layer().output.copy_as_batch_major()
            self.output = output.placeholder
            self.parameters = {one.op.name.split("/")[-1]: one for one in net.get_params_list()}
            self.cotangent = tf1.placeholder(dtype)
            wanted = [self.x, *self.parameters.values()]
            found = tf1.gradients(self.output, wanted, grad_ys=self.cotangent)
            self.gradients = [tf.convert_to_tensor(one) for one in found]
        self.session = tf1.Session(graph=graph)
        with graph.as_default():
            net.initialize_params(self.session)

    def run(self, fetches: Any, lengths: list[int], arrays: dict[str, np.ndarray], **fed: np.ndarray) -> Any:
        """Fetches for x and parameters of these values."""
        for name, parameter in self.parameters.items():
            parameter.load(arrays[name], self.session)
        feed = {self.x: arrays["x"], self.lengths: lengths} | {getattr(self, name): one for name, one in fed.items()}
        return self.session.run(fetches, feed)


graph_of = cache(Graph)


class _Run(torch.autograd.Function):
    """The layer's output; backward by TensorFlow."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, lengths: list[int], names: list[str], *tensors: Tensor) -> Tensor:
        ctx.arrays = {name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True)}
        ctx.graph, ctx.lengths = graph, lengths
        return torch.from_numpy(graph.run(graph.output, lengths, ctx.arrays))

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        graph = ctx.graph
        found = graph.run(graph.gradients, ctx.lengths, ctx.arrays, cotangent=cotangent.numpy())
        by_name = dict(zip(["x", *graph.parameters], found, strict=True))
        return None, None, None, *(torch.from_numpy(by_name[name]) for name in ctx.arrays)


def self_attention(a: dict[str, Tensor], way: str, heads: int, width: int, clipping: int, lengths: list[int]) -> Tensor:
    """`SelfAttentionLayer` of x [B, L, inner] with QKV and encoding_matrix: [B, L, heads * width], in x's dtype."""
    dtype = str(a["x"].dtype).removeprefix("torch.")
    graph = graph_of(dtype, way, a["x"].shape[2], heads, width, clipping)
    return _Run.apply(graph, lengths, list(a), *a.values())
