"""The command line's arguments and their ranges."""

import pytest

from styleserve.arguments import parse

USUAL = ["a.jpg", "out", "--style", "dots"]


def test_options_may_stand_anywhere() -> None:
    for argv in (USUAL, ["a.jpg", "--style", "dots", "out"], ["--style", "dots", "a.jpg", "out"]):
        arguments = parse(argv)
        assert (arguments.paths, arguments.style) == (["a.jpg", "out"], "dots")


def test_the_defaults() -> None:
    arguments = parse(USUAL)
    assert (arguments.strength, arguments.keep_color, arguments.max_side) == (1.0, False, None)
    assert (arguments.in_flight, arguments.overwrite, arguments.skip) == (4, False, False)
    assert arguments.url is None


def test_a_dash_is_a_path_and_list_needs_none() -> None:
    assert parse(["-", "-", "--style", "dots"]).paths == ["-", "-"]
    assert parse(["--list"]).list


def test_what_follows_two_dashes_is_a_path() -> None:
    paths = ["a.jpg", "-hello.jpg", "--x", "--", "-", "-5"]
    expected = ["a.jpg", "./-hello.jpg", "./--x", "./--", "-", "./-5"]
    assert parse(["--style", "dots", "--", *paths]).paths == expected
    assert parse(["b.jpg", "--style", "dots", "--", *paths]).paths == ["b.jpg", *expected]


@pytest.mark.parametrize(
    "word", ["-dash.jpg", "-hello.jpg", "-5.jpg", "--x.jpg", "-style", "-l", "--overwit"]
)
def test_a_word_with_a_dash_is_told_how_to_be_a_file(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in ([word, *USUAL], [*USUAL, word], ["a.jpg", word, "--style", "dots"]):
        with pytest.raises(SystemExit) as ended:
            parse(argv)
        assert ended.value.code == 2
        (_, line) = capsys.readouterr().err.splitlines()
        assert f"no option {word}, see --help; a file of this name is ./{word}" in line
        assert f"./{word}" in parse([*USUAL, f"./{word}"]).paths


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([*USUAL, "--strength", "1.01"], "must be from 0 (original) to 1 (style), got '1.01'"),
        ([*USUAL, "--strength", "nan"], "got 'nan'"),
        ([*USUAL, "--strength", "much"], "got 'much'"),
        ([*USUAL, "--max-side", "0"], "must be from 1 to 65536, got '0'"),
        ([*USUAL, "--max-side", "-5"], "got '-5'"),
        ([*USUAL, "--in-flight", "65"], "must be from 1 to 64, got '65'"),
        ([*USUAL, "--overwrite", "--skip"], "not allowed with"),
        (["a.jpg", "--style", "dots"], "are needed"),
        (["a.jpg", "out"], "are needed"),
        (["", "out", "--style", "dots"], "a path is empty"),
        (["a.jpg", "", "--style", "dots"], "a path is empty"),
        (["a.jpg", "-", "--style", "dots", "--json"], "cannot both go to standard output"),
    ],
)
def test_wrong_usage_ends_with_2(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
