"""The naming rule, which files are found, and what is refused."""

import logging
import os
from pathlib import Path

import pytest

from styleserve.catalog import find_models, load_catalog, served_name
from styleserve.declaration import Declaration
from styleserve.errors import ModelError
from styleserve.runtime import Runtime
from tests import tiny_models as tiny
from tests.pictures import noise

RUNTIME = Runtime.create("cpu", threads=2)


def put(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"model")
    return paths


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("rain-princess-9.onnx", "rain-princess"),
        ("candy.onnx", "candy"),
        ("x-9-12.onnx", "x-9"),
        ("9.onnx", "9"),
        ("starry9.onnx", "starry9"),
        ("a-9b.onnx", "a-9b"),
        ("a_9.onnx", "a_9"),
        ("v1.2-18.onnx", "v1.2"),
        ("Mixed-Case-1.onnx", "Mixed-Case"),
    ],
)
def test_the_served_name_is_the_stem_up_to_its_last_number(file: str, name: str) -> None:
    assert served_name(Path("some/folder-7") / file) == name


def test_files_are_found_at_any_depth(tmp_path: Path) -> None:
    shallow, deep, deeper = put(tmp_path, "a-9.onnx", "x/b-9.onnx", "x/y/z-1/c.onnx")
    put(tmp_path, "notes.txt", "x/d-9.onnx.dvc", "raw.onnx.bak")

    assert find_models(tmp_path) == {"a": shallow, "b": deep, "c": deeper}


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    (seen,) = put(tmp_path / ".hidden-parent", "a-9.onnx")
    put(seen.parent, ".git/b-9.onnx", "x/..2024/c-9.onnx", ".d-9.onnx")

    assert find_models(seen.parent) == {"a": seen}


def test_a_mounted_config_map_serves_each_model_once(tmp_path: Path) -> None:
    """Kubernetes mounts files as links to links into a hidden folder with a date as name."""
    put(tmp_path, "..2024_01_01/a-9.onnx")
    (tmp_path / "..data").symlink_to("..2024_01_01")
    (tmp_path / "a-9.onnx").symlink_to("..data/a-9.onnx")

    assert find_models(tmp_path) == {"a": tmp_path / "a-9.onnx"}


def test_the_models_folder_may_be_a_link(tmp_path: Path) -> None:
    put(tmp_path, "real/x/a-9.onnx")
    (tmp_path / "link").symlink_to("real")

    assert find_models(tmp_path / "link") == {"a": tmp_path / "link/x/a-9.onnx"}


def test_linked_folders_are_entered(tmp_path: Path) -> None:
    put(tmp_path, "models/a-9.onnx", "elsewhere/b-9.onnx")
    (tmp_path / "models/more").symlink_to("../elsewhere")

    assert set(find_models(tmp_path / "models")) == {"a", "b"}


def test_links_that_go_in_circles_or_to_the_same_place_are_followed_once(tmp_path: Path) -> None:
    put(tmp_path, "models/x/a-9.onnx", "elsewhere/b-9.onnx")
    links = {"self": ".", "x/up": "..", "x/outer": "../..", "one": "../elsewhere"}
    for link, target in (links | {"two": "../elsewhere"}).items():
        (tmp_path / "models" / link).symlink_to(target)

    assert set(find_models(tmp_path / "models")) == {"a", "b"}


def test_a_folder_with_the_name_of_a_model_is_only_a_folder(tmp_path: Path) -> None:
    (inside,) = put(tmp_path, "folder-9.onnx/a-9.onnx")

    assert find_models(tmp_path) == {"a": inside}


def test_what_is_no_file_is_refused_without_opening_it(tmp_path: Path) -> None:
    put(tmp_path, "good-9.onnx")
    os.mkfifo(tmp_path / "pipe-9.onnx")  # to open it would take for ever
    (tmp_path / "link-9.onnx").symlink_to("nowhere")

    with pytest.raises(ModelError) as caught:
        find_models(tmp_path)

    assert list(caught.value.problems) == [
        f"{tmp_path}/{name}-9.onnx is no file, or a link to none; remove it"
        for name in ("link", "pipe")
    ]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a-9.onnx")

    with pytest.raises(ModelError, match=r"a-9.onnx is a file; set STYLESERVE_MODELS_DIR"):
        find_models(tmp_path / "a-9.onnx")


@pytest.mark.parametrize("folder", ["", "missing"])
def test_no_model_is_refused_naming_folder_and_remedy(tmp_path: Path, folder: str) -> None:
    put(tmp_path, "a-9.txt")

    with pytest.raises(ModelError, match=r"make models.*STYLESERVE_MODELS_DIR") as caught:
        find_models(tmp_path / folder)

    assert str(tmp_path / folder) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize(("which", "mode"), [("", 0), ("", 0o600), ("deep", 0)])
def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, which: str, mode: int) -> None:
    put(tmp_path, "a-9.onnx", "deep/b-9.onnx")
    (tmp_path / which).chmod(mode)

    with pytest.raises(ModelError, match=rf"{which}\S* cannot be read: Permission denied; let"):
        find_models(tmp_path)
    (tmp_path / which).chmod(0o700)


def test_what_a_file_system_keeps_for_root_is_left_out(tmp_path: Path) -> None:
    seen, _ = put(tmp_path, "a-9.onnx", "lost+found/b-9.onnx")

    assert find_models(tmp_path) == {"a": seen}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a-9.onnx", "a-12.onnx"),
        ("a-9.onnx", "a.onnx"),
        ("a-9.onnx", "deep/a-9.onnx"),
        ("Candy-9.onnx", "candy-9.onnx"),
    ],
)
def test_two_files_of_one_name_are_refused_naming_both(
    tmp_path: Path, one: str, other: str
) -> None:
    paths = put(tmp_path, one, other)

    with pytest.raises(ModelError, match="would both be served as") as caught:
        find_models(tmp_path)

    assert all(str(path) in str(caught.value) for path in paths)


@pytest.mark.parametrize("name", ["with space-9", "größe-9", "a+b", "a&b-1", "-9"])
def test_a_name_that_is_not_allowed_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name}.onnx")

    with pytest.raises(ModelError, match="a served name has letters"):
        find_models(tmp_path)


@pytest.mark.parametrize("file", ["catalog.onnx", "catalog-9.onnx", "deep/Catalog-12.onnx"])
def test_the_reserved_name_is_refused(tmp_path: Path, file: str) -> None:
    put(tmp_path, file)

    with pytest.raises(ModelError, match="the name catalog belongs to"):
        find_models(tmp_path)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    put(tmp_path, "a-1.onnx", "a-2.onnx", "a-3.onnx", "b c.onnx", "catalog.onnx", "good.onnx")

    with pytest.raises(ModelError) as caught:
        find_models(tmp_path)

    assert len(caught.value.problems) == 4
    assert "good" not in str(caught.value)


# --- loading


def test_every_model_is_loaded_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny.save(tiny.invert(), tmp_path / "negative-9.onnx")
    tiny.save(tiny.identity((32, 48)), tmp_path / "deep/same-12.onnx")

    with caplog.at_level(logging.INFO, "styleserve"):
        catalog = load_catalog(find_models(tmp_path), Declaration(), RUNTIME)

    assert set(catalog) == {"negative", "same"}
    assert (catalog["negative"](noise(9, 7), 0) == 255 - noise(9, 7)).all()
    assert catalog["same"].describe()["size"] == "48x32"
    lines = caplog.messages
    assert len(lines) == 2
    assert all("of 2 ready" in line and "CPUExecutionProvider" in line for line in lines)


def test_broken_models_among_good_ones_are_refused_together(tmp_path: Path) -> None:
    tiny.save(tiny.identity(), tmp_path / "good-9.onnx")
    tiny.save(tiny.two_inputs(), tmp_path / "two-9.onnx")
    put(tmp_path, "broken-9.onnx")

    with pytest.raises(ModelError) as caught:
        load_catalog(find_models(tmp_path), Declaration(), RUNTIME)

    broken, two = sorted(caught.value.problems)
    assert broken.startswith(f"{tmp_path}/broken-9.onnx is a text file")
    assert two.startswith(f"{tmp_path}/two-9.onnx: a style model has one input")
