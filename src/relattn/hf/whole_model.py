"""WholeModel: the common part of replacements of whole models, beside those of their modules."""

from __future__ import annotations

from typing import Any

from relattn.hf.private import of_recording
from relattn.hf.replacement import Replacement, original

_RECORDED: dict[str, Any] = of_recording("_CAN_RECORD_REGISTRY", "__setitem__")


class WholeModel(Replacement):
    """A mixin for the replacement of a model. transformers looks a model up by the name of its class.

    By that name it finds which hidden states and attention weights to record, and saves a configuration.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        recorded = getattr(cls, "_can_record_outputs", None)
        dict.__setitem__(_RECORDED, str(cls), recorded)  # its own method needs an object

    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Saved under the original's name."""
        kind = type(self)
        self.__class__ = original(kind)
        try:
            return self.save_pretrained(*args, **kwargs)
        finally:
            self.__class__ = kind
