"""Many tasks at once: run them, tell how far they are, name what they make."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from styleserve.errors import StyleServeError

AT_ONCE = 4  # of one visitor; the server itself runs one or two models at a time

T = TypeVar("T")


def at_once(tasks: Sequence[Callable[[], T]]) -> Iterator[tuple[dict[int, T], dict[int, str]]]:
    """Run tasks side by side; as each ends, yield all results and all errors, by task number.

    Both come in the order of the tasks; an error is told as a sentence.
    """
    done: dict[int, T] = {}
    failed: dict[int, str] = {}
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        numbers = {pool.submit(task): number for number, task in enumerate(tasks)}
        for future in as_completed(numbers):
            try:
                done[numbers[future]] = future.result()
            except StyleServeError as error:
                failed[numbers[future]] = error.sentence
            yield dict(sorted(done.items())), dict(sorted(failed.items()))
    finally:  # the visitor may have left
        pool.shutdown(wait=False, cancel_futures=True)


def report(total: int, done: int, failed: Mapping[str, str]) -> str:
    """Tell how far it is, and what failed, in Markdown."""
    head = f"**{done} of {total}** done"
    lines = [f"- **{_plain(name)}**: {_plain(why)}" for name, why in failed.items()]
    return "\n".join([head + (f", {len(lines)} failed:\n" if lines else ""), *lines])


def unique_names(names: Sequence[str]) -> list[str]:
    """Number the names that come again: a.png, a.png becomes a.png, a (2).png."""
    taken: dict[str, str] = {}  # by what a case-blind file system sees
    for name in names:
        path, count, free = Path(name), 1, name
        while free.lower() in taken:
            count += 1
            free = f"{path.stem} ({count}){path.suffix}"
        taken[free.lower()] = free
    return list(taken.values())


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", text)
