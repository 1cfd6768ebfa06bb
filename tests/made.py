"""What operations write into tensors of their own, counted."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Made(TorchDispatchMode):
    """The bytes of all tensors that operations make, views left out, and the most elements of one, with its operation.

    Tensors on the meta device count too; whether one still stands does not matter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.most: tuple[int, str] = 0, "nothing"

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {_storage(tensor) for tensor in args if isinstance(tensor, Tensor)}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and _storage(tensor) not in given:
                self.bytes += tensor.untyped_storage().nbytes()
                self.most = max(self.most, (tensor.numel(), str(function)))
        return result


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
