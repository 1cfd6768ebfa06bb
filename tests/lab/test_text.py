"""Text as data: what is taken for one, and what is refused with the reason."""

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from relattn.cli import console
from relattn.cli.console import visible
from relattn_lab.text.corpus import load_text
from tests import seeds

WORDS = "Ein Wörterbuch, 辞書, словарь: words of several scripts.\n" * 40


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("words.txt", WORDS)


def compressed(length: int) -> bytes:
    """What compressed data look like: any byte but 0, as often as any other."""
    return seeds.generator(length).integers(1, 256, length).astype(np.uint8).tobytes()


NO_TEXTS = {
    "words.zip": (zipped, "is a ZIP archive, as .npz and .docx are"),
    "words.gz": (lambda path: path.write_bytes(gzip.compress(compressed(500))), "is a gzip archive"),
    "words.bz2": (lambda path: path.write_bytes(bz2.compress(compressed(500))), "is a bzip2 archive"),
    "words.xz": (lambda path: path.write_bytes(lzma.compress(compressed(500))), "is an xz archive"),
    "marked.txt": (lambda path: path.write_text(WORDS, encoding="utf-16"), "is UTF-16"),
    "latin.txt": (lambda path: path.write_text("words " * 99, encoding="utf-16-le"), "holds the byte 0, first at 1"),
    "latin-be.txt": (lambda path: path.write_text("words " * 99, encoding="utf-16-be"), "holds the byte 0, first at 0"),
    "chinese.txt": (
        lambda path: path.write_text("天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往" * 20, encoding="utf-16-le"),
        "has control characters in ",
    ),
    "a.png": (lambda path: path.write_bytes(b"\x89PNG" + compressed(500)), "is a PNG image"),
    "a.bin": (lambda path: path.write_bytes(compressed(200)), "has control characters in "),
    "a.mid.txt": (lambda path: path.write_bytes(b"MThd" + bytes(200)), "is a MIDI file"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_TEXTS)
def test_binary_data_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    write, why = NO_TEXTS[name]
    write(tmp_path / name)
    with pytest.raises(ValueError) as caught:
        load_text(tmp_path / name)
    assert str(caught.value).startswith(f"data: got {tmp_path / name}, which {why}")
    assert str(caught.value).endswith(
        "; expected a text; unpack an archive, and save a text as UTF-8, as `iconv -f UTF-16 -t UTF-8` does"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_texts_in_several_scripts_are_taken(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(WORDS, encoding=encoding)
    assert sum(map(len, load_text(tmp_path / "words.txt").pieces("train"))) > 0


@pytest.mark.parametrize(
    "content",
    [
        "Ein Wörterbuch über Äpfel\n".encode("latin-1") * 20,
        "словарь и ещё слова\n".encode("koi8-r") * 20,
        "日本語の辞書\n".encode("iso-2022-jp") * 20,
        "日本語の辞書\n".encode("shift-jis") * 20,
        b"\x1b[31mred\x1b[0m\r\nN\bNA\bAM\bME\bE\x0c\n" * 20 + b"\x1a",
        b"x" * 300 + b"\x01\x02",
    ],
    ids=["latin", "cyrillic", "japanese, escaped", "japanese", "a terminal's", "two control characters in 302"],
)
def test_texts_in_other_encodings_are_taken(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes(content)
    assert load_text(tmp_path / "words.txt").kind == "text"


def test_a_short_archive_is_no_short_text(tmp_path: Path) -> None:
    path = tmp_path / "small.npz"
    path.write_bytes(b"PK\x03\x04" + b"a" * 40)
    with pytest.raises(ValueError, match="which is a ZIP archive"):
        load_text(path)


def test_what_steers_a_terminal_is_escaped_in_progress_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr(console.err, "print", lambda text, **_: said.append(text))
    console.Bar().say("left out: \x1b[31mred.mid")
    assert said == [r"left out: \x1b[31mred.mid"]


def test_what_steers_a_terminal_is_escaped() -> None:
    assert visible("a\tb\r\nc\n") == "a\tb\nc\n"
    assert visible("\x1b]0;x\x07 \r \x00 \x7f \x9b \u202e \udcff é 辞") == (
        r"\x1b]0;x\x07 \r \x00 \x7f \x9b \u202e \udcff é 辞"
    )
