"""Hugging Face transformers on relattn: `patch` a loaded model, or load one with attn_implementation="relattn"."""

from relattn.hf import installed as installed  # before all others: it says what is missing
from relattn.hf.interface import register
from relattn.hf.masks import MaskStructure
from relattn.hf.patching import patch, patched, unpatch
from relattn.hf.report import Report

register()

__all__ = ["MaskStructure", "Report", "patch", "patched", "unpatch"]
