"""What a comparison may be asked for, and how it is kept."""

import json

import pytest

from relattn_lab.settings import FILE, Plan, Settings

PLAN = Plan(Settings(minutes=None, steps=7, encodings=("rope", "none"), seeds=(3, 4)), 7, "abc")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (
            {"encodings": ("relative", "ropes")},
            "encodings: got 'ropes'; expected one of 'relative-heads', 'relative', 'relative+pitch+time',",
        ),
        ({"encodings": ()}, "encodings: got none; expected at least one"),
        ({"encodings": ("rope", "none", "rope")}, "encodings: got rope,none,rope; expected each once"),
        ({"seeds": ()}, "seeds: got none; expected at least one"),
        ({"seeds": (1, 1)}, "seeds: got 1,1; expected each once"),
        ({"seeds": (-1,)}, "seeds: got -1; expected whole numbers from 0 up to 2**32 - 1"),
        ({"seeds": (2**32,)}, "seeds: got 4294967296; expected whole numbers from 0 up to 2**32 - 1"),
        ({"minutes": 0.0}, "minutes: got 0.0; expected a number above 0, at most 1e+06"),
        ({"minutes": float("nan")}, "minutes: got nan; expected a number above 0"),
        ({"minutes": float("inf")}, "minutes: got inf; expected a number above 0"),
        ({"minutes": 3.0, "steps": 5}, "minutes, steps: got 3.0 and 5; expected one of the two"),
        ({"minutes": None}, "minutes, steps: got None and None; expected one of the two"),
        ({"steps": 0}, "steps: got 0; expected an int of at least 1"),
        ({"length": 30}, "length: got 30 for chorales; expected a multiple of 4, whole steps of its four voices"),
        ({"length": 0}, "length: got 0; expected an int of at least 1"),
        ({"width": 10, "heads": 4}, "width, heads: got 10 and 4; expected a width that the heads divide"),
        ({"heads": 0}, "heads: got 0; expected an int of at least 1"),
        ({"depth": 0}, "depth: got 0; expected an int of at least 1"),
        ({"width": 36}, "width, heads: got 36 and 4; expected what suits the encoding 'rope' (rotary_dim: got 9"),
        ({"width": 45, "heads": 5}, "width, heads: got 45 and 5; expected what suits the encoding 'rope'"),
        (
            {"width": 45, "heads": 5, "encodings": ("none", "sinusoid")},
            "width: got 45 (heads 5); expected an even number for the encoding 'sinusoid'",
        ),
        ({"batch": 0}, "batch: got 0; expected an int of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate: got 0.0; expected a number above 0"),
        ({"dropout": 1.5}, "dropout: got 1.5; expected a probability"),
    ],
)
def test_a_choice_that_cannot_be_carried_out(choice, said):
    with pytest.raises(ValueError) as caught:
        Settings.from_dict(choice)
    assert str(caught.value).startswith(said)


def test_steps_take_the_place_of_the_default_minutes():
    assert Settings().minutes == 5.0
    assert Settings.from_dict({"steps": 5}).minutes is None


def test_a_plan_comes_back_as_it_was_saved(tmp_path):
    PLAN.save(tmp_path)
    assert Plan.load(tmp_path, {}) == PLAN
    assert Plan.load(tmp_path, {"steps": 7, "seeds": (3, 4)}) == PLAN


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"seeds": (3,)},
            "seeds: got 3; expected 3,4, as the comparison in OUT has it; leave the option out to go on with it, or",
        ),
        ({"encodings": ("rope",)}, "encodings: got rope; expected rope,none, as the comparison in OUT has it; leave"),
        ({"width": 8}, "width: got 8; expected 96, as the comparison in OUT has it; leave the option out"),
        ({"minutes": 5.0}, "minutes: got 5.0; expected None, as the comparison in OUT has it; leave the option out"),
        (
            {"data": "x.json"},
            "data: got x.json; expected chorales, as the comparison in OUT has it; leave the option out",
        ),
    ],
)
def test_a_setting_that_differs_from_the_one_begun_with(tmp_path, given, said):
    PLAN.save(tmp_path)
    with pytest.raises(ValueError) as caught:
        Plan.load(tmp_path, given)
    assert str(caught.value).startswith(said.replace("OUT", str(tmp_path)))


def test_nothing_to_go_on_with(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        Plan.load(tmp_path / "no", {})
    assert str(caught.value) == (
        f"resume: got {tmp_path / 'no'}, which holds no settings.json; expected the folder of a comparison; leave out "
        "--resume to begin one"
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:50],
        lambda text: "{}",
        lambda text: '{"fixed": 3}',
        lambda text: "[]",
        lambda text: "null",
        lambda text: '"fixed"',
    ],
)
def test_settings_that_are_broken(tmp_path, spoil):
    PLAN.save(tmp_path)
    path = tmp_path / FILE
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ValueError) as caught:
        Plan.load(tmp_path, {})
    assert str(caught.value).startswith(f"resume: got {path}, which is damaged (")
    assert str(caught.value).endswith("; expected what `relattn-lab compare` wrote; start anew in another --out")


def test_a_setting_of_the_file_that_is_unknown(tmp_path):
    PLAN.save(tmp_path)
    values = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(values | {"colour": 1}))
    with pytest.raises(ValueError, match="is damaged"):
        Plan.load(tmp_path, {})
