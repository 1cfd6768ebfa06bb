"""The model card of a checkpoint: what the model is, what it was trained on, how well it does, and how it was made."""

from __future__ import annotations

from typing import Any

from huggingface_hub import ModelCardData

from relattn import catalogue
from relattn_lab.model import LabModel

FILE = "README.md"


def model_card(model: LabModel, data: str, steps: int, validation: float, command: str) -> str:
    """The card as Markdown, with the front matter of the Hugging Face Hub.

    data: its name. validation: the loss at the end, in nats per token of the validation data. command: what made it.
    """
    config, entry = model.config, catalogue.CATALOGUE[model.config.encoding]
    front = ModelCardData(library_name="relattn", tags=["relattn", "relative-attention", config.encoding])
    rows: dict[str, Any] = {
        "encoding": f"`{config.encoding}`: {entry.meaning} ({entry.source})",
        "data": data,
        "model": f"decoder-only, pre-norm; width {config.width}, depth {config.depth}, {config.heads} heads, "
        f"{model.num_parameters():,} parameters",
        "training": f"{steps:,} steps, windows of {config.length} tokens",
        "validation": f"{validation:.4f} nats per token at the end of training",
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    return f"""---
{front.to_yaml()}
---

# {config.encoding} on {data}

| | |
|---|---|
{table}

Made by

```sh
{command}
```

Compose with it:

```sh
relattn-lab compose --checkpoint .
```
"""
