"""Text and played music through the command: compare, resume, compose."""

import json

import mido
import pytest

from relattn_lab.checkpoint import load_checkpoint
from tests.lab.cli.test_commands import SMALL, call, refused
from tests.lab.played.synthetic import off, on, write_folder, write_midi

pytest_plugins = ["tests.lab.played.apart"]

WORDS = "in the beginning was the word and the word was here\n"


def compare(data, out, *arguments):
    return call("compare", "--data", data, "--encodings", "relative", "--steps", 2, "--out", out, *SMALL, *arguments)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "words.txt").write_text(WORDS * 20)
    return folder, compare(folder / "words.txt", folder / "out")


@pytest.fixture(scope="module")
def midi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("midi")
    write_folder(folder / "songs")
    return folder, compare(folder / "songs", folder / "out")


def checkpoint(folder):
    return folder / "out" / "runs" / "relative-seed0" / "model"


def composed(folder, out, *arguments):
    code, printed, err = call("compose", "--checkpoint", checkpoint(folder), "--out", out, *arguments)
    assert code == 0, err
    return printed, {path.suffix: path for path in out.iterdir()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        ("text", "words.txt", ("bytes as they are", "up to five bytes back", "bits per byte")),
        ("midi", "songs", ("MIDI files as events", "up to five events back", "Events are not equal in time")),
    ],
)
def test_compare_reports_on_it(source, name, says, request):
    folder, (code, printed, err) = request.getfixturevalue(source)
    assert code == 0, err
    assert name in printed
    assert "n-gram" in printed
    page = (folder / "out" / "report.html").read_text()
    for words in (name, *says):
        assert words in page, words
    assert "voices" not in page
    results = json.loads((folder / "out" / "results.json").read_text())
    for length in ("16", "32", "64"):
        tokens = results["data"]["test"]["tokens"]
        assert results["ngram"][length]["tokens"] == results["runs"][0]["evaluation"][length]["tokens"] == tokens


def test_a_text_goes_on_from_words(text, tmp_path):
    folder, _ = text
    printed, files = composed(folder, tmp_path, "--prompt", "[b]In the", "--steps", 9)
    assert set(files) == {".txt"}
    content = files[".txt"].read_bytes()
    assert content.startswith(b"[b]In the")
    assert len(content) == 18
    assert "[b]In the" in printed
    assert "18 bytes, 9 of them given" in printed
    assert f"text {files['.txt']}" in printed


def test_what_steers_a_terminal_is_written_and_not_printed(text, tmp_path):
    folder, _ = text
    printed, files = composed(folder, tmp_path, "--prompt", "\x1b]0;a\x07", "--steps", 1)
    assert files[".txt"].read_bytes().startswith(b"\x1b]0;a\x07")
    assert r"\x1b]0;a\x07" in printed
    assert "\x1b" not in printed


def test_words_need_no_data(text, tmp_path):
    folder, _ = text
    (folder / "words.txt").rename(folder / "elsewhere")
    try:
        composed(folder, tmp_path / "a", "--prompt", "a", "--steps", 1)
        composed(folder, tmp_path / "b", "--from-nothing", "--steps", 1)
        said = f"data: got {str(folder / 'words.txt')!r}, which is not there; expected a text file"
        assert refused("compose", "--checkpoint", checkpoint(folder), "--out", tmp_path / "c") == said
    finally:
        (folder / "elsewhere").rename(folder / "words.txt")


def test_a_held_out_text_is_continued_from_the_start_of_a_line(text, tmp_path):
    folder, _ = text
    printed, files = composed(folder, tmp_path, "--prompt-steps", 16, "--steps", 4)
    assert files[".txt"].read_bytes().startswith(WORDS[:16].encode())
    assert "20 bytes, 16 of them given" in printed


def test_played_music_is_continued_and_drawn(midi, tmp_path):
    folder, _ = midi
    printed, files = composed(folder, tmp_path, "--prompt-steps", 20, "--steps", 30)
    assert set(files) == {".mid", ".png"}
    assert "50 events, 20 of them given" in printed
    assert any(message.type == "note_on" for message in mido.MidiFile(files[".mid"]))
    assert files[".png"].read_bytes().startswith(b"\x89PNG")
    assert files[".mid"].name.startswith("song-")


def test_checkpoints_know_their_kind(text, midi):
    kinds = [load_checkpoint(checkpoint(folder))[1] for folder, _ in (text, midi)]
    assert [(card.kind, card.tokens, card.vocabulary.size) for card in kinds] == [("text", {}, 257), ("midi", {}, 389)]


@pytest.mark.parametrize(
    ("source", "arguments", "said"),
    [
        (
            "midi",
            ["--prompt", "a"],
            "--prompt: got words; expected none, for only a model of text goes on from words; leave them out, or use "
            "--prompt-steps",
        ),
        ("midi", ["--prompt-steps", 900], "--prompt-steps: got 900; expected at most "),
        (
            "text",
            ["--prompt-steps", 900],
            "--prompt-steps: got 900; expected at most 104, the bytes of the held-out text",
        ),
        (
            "text",
            ["--prompt", ""],
            "--prompt: got no text; expected some; to start without a prompt use --from-nothing",
        ),
        (
            "text",
            ["--prompt", "a", "--from-nothing"],
            "--prompt: got one beside --prompt-steps or --from-nothing; expected one of them",
        ),
    ],
)
def test_compose_refuses_in_one_sentence(source, arguments, said, request, tmp_path):
    folder, _ = request.getfixturevalue(source)
    refusal = refused("compose", "--checkpoint", checkpoint(folder), "--out", tmp_path / "out", *arguments)
    assert refusal.startswith(said)
    assert not (tmp_path / "out").exists()


def test_resume_refuses_other_data(text, midi, tmp_path):
    folder, _ = text
    out = folder / "out"
    songs = midi[0] / "songs"
    said = (
        f"--data: got {songs}; expected {folder / 'words.txt'}, as the comparison in {out} has it; leave the option out"
    )
    assert refused("compare", "--resume", "--out", out, "--data", songs).startswith(said)
    (folder / "words.txt").write_text(WORDS * 20 + "!")
    try:
        assert refused("compare", "--resume", "--out", out) == (
            f"--data: got {folder / 'words.txt'}, which has changed; expected what the comparison in {out} began with; "
            "bring it back, or choose another --out"
        )
    finally:
        (folder / "words.txt").write_text(WORDS * 20)
    assert call("compare", "--resume", "--out", out)[0] == 0


def test_bad_files_are_named_before_anything_is_fitted_and_skipped_where_asked(tmp_path):
    songs, out = write_folder(tmp_path / "songs", 4), tmp_path / "out"
    for name in ("a.mid", "b.mid"):
        write_midi(songs / name, on(40, channel=9), off(40, 9, channel=9))
    said = refused("compare", "--data", songs, "--steps", 2, "--out", out, *SMALL)
    assert said == (
        f"--data: got {songs / 'a.mid'}, which holds no notes (drums do not count); {songs / 'b.mid'}, which holds no "
        "notes (drums do not count); expected MIDI files with notes; take them out of the folder, or pass --skip-bad "
        "to go on without"
    )
    assert not out.exists()
    code, _, err = compare(songs, out, "--skip-bad")
    assert code == 0, err
    assert f"left out: {songs / 'a.mid'}, which holds no notes (drums do not count)" in err
    assert "--skip-bad" in (out / "report.html").read_text()
    assert call("compare", "--resume", "--out", out)[0] == 0
    composed(tmp_path, tmp_path / "music", "--prompt-steps", 5, "--steps", 5)
    file = out / "config.toml"
    assert refused("compare", "--data", file, "--skip-bad", "--out", tmp_path / "b") == (
        f"--skip-bad: got it for {file}, which is no folder; expected a folder of MIDI files; leave it out"
    )
