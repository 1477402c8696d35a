"""What became of the files of one run, for people and for scripts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from styleserve.plan import Job

Entry = dict[str, str]  # a job as it describes itself, and an `error` or a `note`


@dataclass
class Report:
    """Results, failures and what was left out."""

    planned: int
    results: list[Entry] = field(default_factory=list)
    failures: list[Entry] = field(default_factory=list)
    skipped: list[Entry] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    def done(self, job: Job, notes: Sequence[str] = ()) -> None:
        """Add a result, and what it lacks."""
        self.results.append(job.describe() | ({"note": "; ".join(notes)} if notes else {}))

    def failed(self, job: Job, error: Exception) -> None:
        """Add a failure and its reason."""
        reason = error.strerror if isinstance(error, OSError) else None
        self.failures.append(job.describe() | {"error": reason or str(error) or repr(error)})

    def as_dict(self) -> dict[str, Any]:
        """Give all of it for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Tell people what they must know, the sum last."""
        told = [(entry, entry["note"]) for entry in self.results if "note" in entry]
        told += [(entry, entry["error"]) for entry in self.failures]
        left = self.planned - len(self.results) - len(self.failures)
        counts = {
            "failed": len(self.failures),
            "skipped": len(self.skipped),
            "not done, run it again with --skip": left if self.interrupted else 0,
        }
        parts = [f"{len(self.results)} done", *(f"{n} {what}" for what, n in counts.items() if n)]
        return [
            *(f"{entry['source']} in {entry['style']}: {text}" for entry, text in told),
            f"{', '.join(parts)} in {self.seconds:.1f} s",
        ]
