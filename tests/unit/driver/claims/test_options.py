"""What drivers declare as their options, and which declarations are left out."""

import pytest

from dranode.driver.claims.options import DriverOption, Option, declarations

DIM = Option("dim-to", "How dark.", default="low", choices=("low", "lower"))
LOUD = Option("loud", "Say it.", default=False, flag="--noisy", top_key="noise")


def test_an_options_names_follow_from_its_driver() -> None:
    dim, loud = DriverOption("my_lamps", DIM), DriverOption("lamps", LOUD)
    assert (dim.flag, dim.parameter, dim.field) == ("--my-lamps-dim-to", "my_lamps_dim_to", "dim_to")
    assert (dim.variable, dim.section, dim.key) == ("DRANODE_MY_LAMPS_DIM_TO", "my_lamps", "dimTo")
    assert (loud.flag, loud.parameter, loud.field) == ("--noisy", "noisy", "loud")
    assert (loud.variable, loud.section, loud.key) == ("DRANODE_NOISY", "", "noise")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": "dimTo"}, 'the option "dimTo" is not lower-case words with hyphens'),
        ({"help": " "}, 'the option "dim" has no help'),
        ({"default": "off", "choices": ("low", "high")}, '"dim" is low or high, not "off", its default'),
        ({"flag": "-d"}, 'the flag "-d" of the option "dim" is not one'),
    ],
)
def test_an_invalid_option_is_refused_where_it_is_declared(fields: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Option(**{"name": "dim", "help": "How dark.", **fields})  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize(
    ("second", "value", "sentence"),
    [
        (
            "a",
            ImportError("no module named torch"),
            'options of the driver "a" cannot be loaded: ImportError: no module',
        ),
        ("a", [DIM], r'options of the driver "a" are not a tuple of dranode\.driver\.Option, but a list'),
        ("a", ("dim",), "but a tuple"),
        ("a", (DIM, DIM), 'the driver "a" declares the flag --a-dim-to twice'),
        ("a", (LOUD,), 'the flag --noisy is declared by the driver "a" and by the driver "lamps"'),
        (
            "a",
            (Option("x", "X.", flag="--no-noisy"),),
            'flag --no-noisy is declared by the driver "a" and by the driver "l',
        ),
        (
            "a",
            (Option("x", "X.", top_key="noise"),),
            'the key "noise" is declared by the driver "a" and by the driver "la',
        ),
        (
            "a",
            (Option("x", "X.", top_key="drivers"),),
            'key "drivers" is declared by the driver "a" and by dranode itself',
        ),
        ("node", (Option("name", "N."),), 'flag --node-name is declared by the driver "node" and by dranode itself'),
        (
            "lamps-dim",
            (Option("to", "T."),),
            'flag --lamps-dim-to is declared by the driver "lamps-dim" and by the dri',
        ),
    ],
)
def test_only_a_broken_or_colliding_declaration_is_left_out(second: str, value: object, sentence: str) -> None:
    found = declarations([("lamps", (DIM, LOUD)), (second, value), ("other", (DIM,))])
    assert [each.driver for each in found.options] == ["lamps", "lamps", "other"]
    assert list(found.problems) == [second]
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(found.problems[second])
