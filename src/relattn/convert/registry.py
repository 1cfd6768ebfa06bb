"""The formats by name."""

from __future__ import annotations

from relattn.convert import bert, returnn_key_shift, returnn_rel_pos, tensor2tensor, transfo_xl, x_transformers
from relattn.convert.format import Format

FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        bert.RELATIVE_KEY,
        bert.RELATIVE_KEY_QUERY,
        transfo_xl.TRANSFO_XL,
        tensor2tensor.RELATIVE,
        tensor2tensor.RELATIVE_V2,
        tensor2tensor.UNMASKED_RELATIVE_V2,
        returnn_key_shift.KEY_SHIFT,
        returnn_rel_pos.REL_POS,
        x_transformers.X_TRANSFORMERS,
    )
}
"""What `to_relattn` takes as its source and `from_relattn` as its target, by name."""
