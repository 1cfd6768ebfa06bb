"""Four-part music as arrays: where it comes from, how it becomes tokens and windows, how it is heard and seen. NumPy, no torch.

A **step** is a 16th note. A **piece** is `Piece(name, steps, upbeat, bar_steps)` with `steps` int16 [T, 4], the MIDI pitch of soprano,
alto, tenor and bass while the step begins, -1 where the voice is silent. Everything else follows the path
source -> `MusicData` -> `Vocabulary` -> windows.

    data.py         Piece(name, steps, upbeat=0, bar_steps=16)   upbeat: steps before the first bar line; bar_steps: steps in a bar
                    MusicData(name, train, valid, test)          tuples of Piece;  .split("train" | "valid" | "test")
                    load_music(source, *, cache_dir=None, progress=None) -> MusicData
                                                                 source "chorales", or the path of a JSON file
    chorales.py     load_chorales(*, cache_dir=None, progress=None) -> MusicData         progress(done, total), in files read
    json_format.py  load_json(path) -> MusicData
    split.py        tune(steps) -> bytes; split_of(steps) -> "train" | "valid" | "test"
    tokens.py       Vocabulary(low, high); Vocabulary.covering(pieces); .size, .begin (0), .silence (1), .encode(steps) -> int64 [4 T],
                    .stream(steps) -> int64 [1 + 4 T] (begin first), .decode(tokens) -> int16 [ceil(n / 4), 4]
                    voice_ranges(pieces) -> int16 [4, 2]; transpositions(steps, ranges) -> range of semitones; transpose(steps, semitones)
    windows.py      IGNORED = -100: a target that is not counted (torch's ignore_index)
                    TrainingWindows(pieces, vocabulary, length, count, seed): [i] -> {"input_ids" [length], "labels" [length]}, int64;
                    example i is a function of (seed, i) alone; labels are ALREADY shifted: labels[p] is the token after input_ids[p]
                    Windows(input_ids [N, L], labels [N, L], piece [N], start [N]); .lengths [N] (tokens that are not padding)
                    evaluation_windows(pieces, vocabulary, length, context=0) -> Windows     every token a label exactly once
                    evaluation_lengths(pieces, vocabulary, length) -> {length: Windows, 2 * length: ..., 4 * length: ...}
                    batches(windows, batch_size) -> iterator of Windows, longest first, trimmed to the longest of the batch
    ngram.py        NGram.fit(pieces, vocabulary) -> NGram; .losses(piece) -> float64 [4 T] (nats); .evaluate(pieces) -> nats per token
    midi.py         write_midi(path, steps, *, beats_per_minute=72.0) -> None
    pianoroll.py    draw_pianoroll(path, steps, *, prompt_steps=0, title="", upbeat=0, bar_steps=16) -> None

A window holds one piece only and is padded on the right, so under a causal mask nothing attends into another piece or into padding,
and no further mask is needed. Position p of a window always predicts voice p % 4.
"""
