"""The notes that a worker and its server leave each other; `test_worker` has the other side."""

import json
from pathlib import Path

from styleserve.ticket import NOBODY, Ticket


def test_figures_are_handed_over_once(tmp_path: Path) -> None:
    ticket = Ticket(tmp_path, 1)
    ticket.add("seconds", 0.5, model="p", node="a")
    ticket.add("hit", 1, model="p")

    ticket.hand_over()

    file = tmp_path / "1.figures"
    assert json.loads(file.read_text()) == [
        ["seconds", {"model": "p", "node": "a"}, 0.5],
        ["hit", {"model": "p"}, 1],
    ]
    file.unlink()
    ticket.hand_over()
    assert not file.exists()


def test_the_total_is_that_of_one_request(tmp_path: Path) -> None:
    ticket = Ticket(tmp_path, 0)
    for node, value in (("a", 1), ("b", 2)):
        ticket.add("failure", value, node=node)
        ticket.add("count", 1, node=node)

    assert [ticket.total(name) for name in ("failure", "count", "hit")] == [3, 2, 0]
    ticket.hand_over()
    assert ticket.total("failure") == 0


def test_a_folder_that_is_gone_costs_the_figures_only(tmp_path: Path) -> None:
    ticket = Ticket(tmp_path / "missing", 0)
    ticket.add("hit", 1, model="p")

    ticket.hand_over()

    assert not ticket.is_gone()


def test_each_worker_has_its_own_notes(tmp_path: Path) -> None:
    (tmp_path / "1.gone").touch()

    assert [Ticket(tmp_path, worker).is_gone() for worker in (0, 1)] == [False, True]


def test_without_a_worker_nobody_is_told_anything(tmp_path: Path) -> None:
    NOBODY.add("hit", 1, model="p")
    NOBODY.hand_over()

    assert not NOBODY.is_gone()
    assert NOBODY.total("hit") == 0
