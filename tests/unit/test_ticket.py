"""What a request has beside its tensors."""

from styleserve.ticket import Ticket


def test_figures_are_handed_over_once() -> None:
    ticket = Ticket()
    ticket.add("seconds", 0.5, model="p", node="a")
    ticket.add("hit", 1, model="p")

    assert ticket.hand_over() == [
        ("seconds", {"model": "p", "node": "a"}, 0.5),
        ("hit", {"model": "p"}, 1),
    ]
    assert ticket.hand_over() == []


def test_the_total_is_that_of_one_request() -> None:
    ticket = Ticket()
    for node, value in (("a", 1), ("b", 2)):
        ticket.add("failure", value, node=node)
        ticket.add("count", 1, node=node)

    assert [ticket.total(name) for name in ("failure", "count", "hit")] == [3, 2, 0]
    ticket.hand_over()
    assert ticket.total("failure") == 0


def test_callers_go_only_where_somebody_sees_it() -> None:
    assert not Ticket().is_gone()
    assert Ticket(lambda: True).is_gone()
