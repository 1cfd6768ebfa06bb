"""Tunes as one self-contained page, or as a part of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from relattn_lab.listen.tune import Tune

HERE = Path(__file__).parent
STYLE = """
:root { color-scheme: light dark; --paper: #fdfcfa; --ink: #23262b; --soft: #646a74; --line: #e3e0da; --mark: #f3efe6; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #17191d; --ink: #e4e2dd; --soft: #9aa0a9; --line: #32363d; --mark: #22262c; }
}
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 54rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
@media (max-width: 30rem) { body { padding: 1.5rem .8rem 3rem; } }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .4rem; overflow-wrap: anywhere; }
.lead, .soft, figcaption { color: var(--soft); }
"""
"""Colours, by light and dark, and type of the lab's pages."""


def player(tunes: Sequence[Tune]) -> str:
    """The tunes as cards, with all that plays them, for the body of a page that has STYLE."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("player.css", "player.js"))
    # "<" would let a title end the element; surrogates of a name that is no UTF-8 are escaped by json
    data = json.dumps([tune.as_json() for tune in tunes], separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<style>{style}</style>\n<script type="application/json" class="relattn-tunes">{data}</script>\n'
        f"<script>{script}</script>"
    )


def page(title: str, lead: str, tunes: Sequence[Tune]) -> str:
    """A page of its own, without any reference to the outside."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{player(tunes)}
</body>
</html>
"""
