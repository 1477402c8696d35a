"""What servers leave behind: told apart by a lock that other processes of these tests hold."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from styleserve import leftovers
from styleserve.leftovers import Claim, clean

HOLD = """
import sys
from pathlib import Path
from styleserve.leftovers import Claim
claim = Claim(Path(sys.argv[1]), sys.argv[2])
print(flush=True)
sys.stdin.read()
"""

Holder = subprocess.Popen[bytes]
Hold = Callable[[Path, str], Holder]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Start servers that hold a claim and have files, until they are killed."""
    started: list[Holder] = []

    def start(folder: Path, token: str) -> Holder:
        pipe, root = subprocess.PIPE, Path(__file__).parents[2]
        command = [sys.executable, "-c", HOLD, str(folder), token]
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=root))
        assert started[-1].stdout
        assert started[-1].stdout.readline() == b"\n"
        fill(folder, token)
        return started[-1]

    yield start
    for holder in started:
        kill(holder)


def kill(holder: Holder) -> None:
    holder.kill()
    holder.communicate()


def fill(folder: Path, token: str) -> None:
    (folder / f"styleserve-{token}" / "model-store").mkdir(parents=True)
    (folder / f"styleserve-{token}_shm").touch()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def all_of(token: str) -> list[str]:
    return [f"styleserve-{token}{end}" for end in ("", ".lock", "_shm")]


def test_only_what_dead_servers_left_is_removed(tmp_path: Path, hold: Hold) -> None:
    dead, live = hold(tmp_path, "dead"), hold(tmp_path, "live")
    for name in ("styleserve-nobody", "my-styleserve-dead", "other.lock"):
        (tmp_path / name).touch()
    before = names(tmp_path)
    assert clean(tmp_path) == []
    assert names(tmp_path) == before

    kill(dead)

    assert sorted(path.name for path in clean(tmp_path)) == all_of("dead")
    assert names(tmp_path) == sorted(set(before) - set(all_of("dead")))

    kill(live)
    assert sorted(path.name for path in clean(tmp_path)) == all_of("live")
    assert clean(tmp_path) == []


def test_files_in_another_folder_stay(tmp_path: Path, hold: Hold) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        kill(hold(folder, "dead"))

    clean(here)

    assert names(here) == []
    assert names(there) == all_of("dead")


def test_a_claim_goes_with_all_its_files_and_nothing_else(tmp_path: Path) -> None:
    one, other = (Claim(tmp_path / "new" / "cache", token) for token in ("one", "other"))
    fill(tmp_path / "new" / "cache", "one")
    fill(tmp_path / "new" / "cache", "other")
    assert (one.name, other.name) == ("styleserve-one", "styleserve-other")

    one.release()

    assert names(tmp_path / "new" / "cache") == all_of("other")
    other.release()
    assert names(tmp_path / "new" / "cache") == []


def test_a_claim_of_this_process_is_live_too(tmp_path: Path) -> None:
    claim = Claim(tmp_path, "own")

    assert clean(tmp_path) == []

    assert names(tmp_path) == ["styleserve-own.lock"]
    claim.release()


@pytest.mark.parametrize("done", [1, 2])
def test_a_clean_up_that_was_cut_short_is_done_again(
    tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    kill(hold(tmp_path, "dead"))
    remove = leftovers._remove

    def be_cut_short(folder: Path, name: str) -> Iterator[Path]:
        yield from itertools.islice(remove(folder, name), done)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "_remove", be_cut_short)
        with pytest.raises(KeyboardInterrupt):
            clean(tmp_path)
    assert len(names(tmp_path)) == 3 - done

    clean(tmp_path)

    assert names(tmp_path) == []


def test_a_file_that_cannot_be_removed_hinders_no_other(
    tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("a", "b"):
        kill(hold(tmp_path, token))
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "styleserve-a_shm":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    clean(tmp_path)

    assert names(tmp_path) == ["styleserve-a.lock", "styleserve-a_shm"]


def test_what_goes_by_itself_meanwhile_is_no_problem(
    tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(hold(tmp_path, "dead"))
    remove = leftovers._remove

    def vanish(folder: Path, name: str) -> Iterator[Path]:
        for path in remove(folder, name):
            (folder / f"{name}_shm").unlink(missing_ok=True)
            yield path

    monkeypatch.setattr(leftovers, "_remove", vanish)
    clean(tmp_path)

    assert names(tmp_path) == []


def test_a_lock_that_cannot_be_opened_is_skipped(tmp_path: Path, hold: Hold) -> None:
    """As that of another user: here a folder, which not even root can open."""
    (tmp_path / "styleserve-a.lock").mkdir()
    (tmp_path / "styleserve-a_shm").touch()
    kill(hold(tmp_path, "b"))

    clean(tmp_path)

    assert names(tmp_path) == ["styleserve-a.lock", "styleserve-a_shm"]


def test_a_folder_that_is_not_there_has_no_leftovers(tmp_path: Path) -> None:
    assert clean(tmp_path / "gone") == []
    assert not os.path.lexists(tmp_path / "gone")
