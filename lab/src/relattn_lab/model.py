"""A decoder-only transformer on `RelativeMultiheadAttention`, as a Hugging Face model."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import HfApi
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from relattn import GridPositions, catalogue
from relattn.errors import ShapeError
from relattn.nn import KVCache, RelativeMultiheadAttention
from relattn_lab.cache import CACHE, LabCache
from relattn_lab.config import LabConfig
from relattn_lab.encodings import build_encoding
from relattn_lab.support.files import write_text
from relattn_lab.voices.pieces import VOICES
from relattn_lab.voices.places import places_of
from relattn_lab.windows import IGNORED


class FeedForward(nn.Module):
    """out(gelu(inner(x))), [..., width] -> [..., width], four times as wide within."""

    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Linear(width, 4 * width)
        self.out_proj = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The formula above."""
        return self.out_proj(F.gelu(self.inner(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)): a pre-norm block, [B, L, width] -> [B, L, width]."""

    def __init__(self, config: LabConfig):
        super().__init__()
        layer = catalogue.Layer(config.heads, config.width // config.heads, config.length, causal=True)
        encoding = build_encoding(config.encoding, layer, config.encoding_options)
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = RelativeMultiheadAttention(config.width, config.heads, encoding, dropout=config.dropout)
        self.feed_forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: torch.Tensor,
        key_mask: torch.Tensor | None,
        cache: KVCache | None,
        places: dict[str, GridPositions | torch.Tensor] | None,
    ) -> torch.Tensor:
        """`key_mask` [B, keys] True keeps; `cache` holds the keys and values of the tokens before x.

        places: where the tokens of x stand on each axis beside the sequence.
        """
        attended = self.attention(
            self.attention_norm(x), is_causal=True, key_mask=key_mask, query_position=places,
            key_position=None if cache is not None else places, cache=cache,
        )  # fmt: skip
        x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class LabModel(PreTrainedModel, GenerationMixin):
    """p(token | tokens before it) by `depth` pre-norm blocks with any encoding of the catalogue that the lab trains.

    Token embeddings are scaled by sqrt(width) (Vaswani et al. 2017, section 3.4). The absolute baseline adds sinusoids
    of the position to them; "sinusoid+voice" concatenates both with labels of the voices, and projects to the width.
    For an encoding on "time" and "pitch" tokens are those of four voices, placed by `places_of`. Weights start as
    N(0, 1 / fan_in), those that write to the residual stream divided by sqrt(2 depth) (Radford et al. 2019, section
    2.3).
    """

    config_class = LabConfig
    base_model_prefix = ""
    _tied_weights_keys = {"output.weight": "embedding.weight"}  # noqa: RUF012
    _no_split_modules = ["Block"]  # noqa: RUF012
    # The loss divides by the number of tokens in the whole step, over all devices: see transformers.Trainer.
    accepts_loss_kwargs = True

    config: LabConfig

    def __init__(self, config: LabConfig):
        super().__init__(config)
        self.beside: dict[str, str] = {}
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        entry = catalogue.CATALOGUE[config.encoding]
        self.joined = nn.Linear(2 * config.width + len(VOICES), config.width, bias=False) if entry.voices else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As every Hugging Face model. The files in `beside` are saved with it."""
        super().save_pretrained(save_directory, **options)
        for name, text in self.beside.items():
            write_text(Path(save_directory) / name, text)

    def push_to_hub(
        self, repo_id: str, *, token: str | None = None, private: bool | None = None, **options: Any
    ) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Upload the checkpoint, its model card among it, to the Hugging Face Hub; the address of what came there.

        options: those of `huggingface_hub.HfApi.upload_folder`, such as commit_message, revision and create_pr.
        """
        hub = HfApi(token=token)
        repo = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return str(hub.upload_folder(repo_id=repo, folder_path=folder, **options))

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        """The output layer."""
        return self.output

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output layer."""
        self.output = new_embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.width**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, (RelativeMultiheadAttention, FeedForward)):
            fan_in = module.out_proj.in_features
            init.normal_(module.out_proj.weight, std=(2 * self.config.depth * fan_in) ** -0.5)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: LabCache | None = None,
        labels: torch.Tensor | None = None,
        shift_labels: torch.Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        positions: torch.Tensor | None = None,
        cache: LabCache | None = None,
    ) -> CausalLMOutputWithPast:
        """Logits of the next token, and the mean negative log-likelihood in nats when labels are given.

        Args:
            input_ids: int64 [B, L].
            attention_mask: [B, cached + L], nonzero where there is a token; padding may stand on either side.
            past_key_values: the tokens before these; this call appends to it.
            labels: int64 [B, L], labels[:, i] is the token at i (shifted here); -100 is not counted.
            shift_labels: int64 [B, L], shift_labels[:, i] is the token after i; in place of `labels`.
            use_cache: start a cache when none is given.
            logits_to_keep: only the last so many positions' logits; 0: all.
            num_items_in_batch: divisor of the summed loss, the tokens counted in a whole step over all devices.
            positions: int64 [L], where the tokens stand in their window, for the absolute baseline where a process
                holds a part of it; one after the other unless given. Split attention finds them itself.
            cache: what transformers 5.24 and later call past_key_values.

        Raises ShapeError: when the mask does not cover the cached and the given tokens.
        """
        past_key_values = cache if past_key_values is None else past_key_values
        if use_cache and past_key_values is None:
            past_key_values = LabCache(self.config.depth)
        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        batch, given = input_ids.shape
        if attention_mask is not None and attention_mask.shape != (batch, seen + given):
            raise ShapeError(
                f"attention_mask: got shape {list(attention_mask.shape)}; expected {[batch, seen + given]} "
                f"(batch, {seen} cached and {given} given tokens); let it cover the cached tokens, too"
            )
        key_mask = None if attention_mask is None else attention_mask.bool()
        entry, numbers = catalogue.CATALOGUE[self.config.encoding], None
        if key_mask is not None and (entry.absolute or entry.axes):
            numbers = (key_mask.long().cumsum(-1) - 1).clamp(min=0)[:, seen:]
        x = self.embedding(input_ids) * math.sqrt(self.config.width)
        if entry.absolute:
            if positions is None:
                positions = torch.arange(seen, seen + given, device=x.device)
            x = self._placed(x, positions[None] if numbers is None else numbers)
        x = self.dropout(x)
        on_axes = places_of(input_ids, seen, numbers) if entry.axes else None
        for layer, block in enumerate(self.blocks):
            x = block(x, key_mask, None if past_key_values is None else past_key_values.kv(layer), on_axes)
        logits = self.output(self.norm(x[:, -logits_to_keep:]))
        if shift_labels is None and labels is not None:
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        loss = None
        if shift_labels is not None:
            summed = F.cross_entropy(
                logits.flatten(0, 1).float(), shift_labels.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            loss = summed / ((shift_labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch)
        kept: dict[str, Any] = {CACHE: past_key_values}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **kept)

    def _placed(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Embeddings x [B, length, width] with the sinusoids of `positions` [B or 1, length], and voices, in them.

        The token at position p of a window, of which "begin" is the first, is of voice (p - 1) mod 4.
        """
        sinusoids = self._sinusoids(positions, x)
        if self.joined is None:
            return x + sinusoids
        voices = F.one_hot((positions - 1) % len(VOICES), len(VOICES)).to(x.dtype)
        parts = (x, sinusoids, voices)
        return self.joined(torch.cat([part.expand(*x.shape[:2], -1) for part in parts], dim=-1))

    def _sinusoids(self, positions: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """sin and cos of position / 10000^(2i / width), [B or 1, length, width]; a position counts no padding."""
        pairs = torch.arange(0, self.config.width, 2, dtype=torch.float64, device=like.device)
        angles = positions[..., None] * (10000.0 ** (-pairs / self.config.width)).float()
        return torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype)

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs) -> None:
        # transformers would make its own DynamicCache, which does not support prepared keys.
        if generation_config.use_cache and model_kwargs.get(CACHE) is None:
            model_kwargs[CACHE] = LabCache(self.config.depth)


AutoConfig.register(LabConfig.model_type, LabConfig)
AutoModelForCausalLM.register(LabConfig, LabModel)
