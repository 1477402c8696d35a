"""The notes that a worker and its server leave each other; `test_worker` has the other side."""

import json
from pathlib import Path

from styleserve.ticket import NOBODY, Ticket


def test_figures_are_handed_over_once(tmp_path: Path) -> None:
    ticket = Ticket(tmp_path, 1)
    ticket.count("p", "a", 0.5, failed=False)
    ticket.count("p", "b", 0.25, failed=True)

    ticket.hand_over()

    file = tmp_path / "1.figures"
    assert json.loads(file.read_text()) == [["p", "a", 0.5, False], ["p", "b", 0.25, True]]
    file.unlink()
    ticket.hand_over()
    assert not file.exists()


def test_a_folder_that_is_gone_costs_the_figures_only(tmp_path: Path) -> None:
    ticket = Ticket(tmp_path / "missing", 0)
    ticket.count("p", "a", 0.5, failed=False)

    ticket.hand_over()

    assert not ticket.is_gone()


def test_each_worker_has_its_own_notes(tmp_path: Path) -> None:
    (tmp_path / "1.gone").touch()

    assert [Ticket(tmp_path, worker).is_gone() for worker in (0, 1)] == [False, True]


def test_without_a_worker_nobody_is_told_anything(tmp_path: Path) -> None:
    NOBODY.count("p", "a", 0.5, failed=False)
    NOBODY.hand_over()

    assert not NOBODY.is_gone()
