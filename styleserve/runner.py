"""Many files through the server: several at once, and one that fails never stops the others."""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from tqdm import tqdm

from styleserve.crew import Crew
from styleserve.errors import StyleServeError
from styleserve.files import saving
from styleserve.image import Image
from styleserve.plan import Job
from styleserve.remote import Options, Remote
from styleserve.report import Report


@dataclass(frozen=True)
class Runner:
    """How the files of one run are styled."""

    remote: Remote
    options: Options
    in_flight: int
    stdin: bytes = b""

    def run(self, jobs: Sequence[Job], report: Report) -> None:
        """Do `jobs`, photos before videos, and tell it in `report`; Ctrl-C ends it early."""
        start = time.monotonic()
        crew = Crew(self.in_flight)
        try:
            self._photos([job for job in jobs if not job.is_video], crew, report)
            for job in jobs:
                if job.is_video:
                    self._video(job, crew, report)
        except KeyboardInterrupt:
            report.interrupted = True
        report.seconds = round(time.monotonic() - start, 3)

    def _photos(self, jobs: Sequence[Job], crew: Crew, report: Report) -> None:
        answers = crew.as_done(self._call, jobs)
        for job, answer in tqdm(answers, total=len(jobs), unit="photo", disable=_no_bar(jobs)):
            try:
                _save(job, answer, report)
            except (StyleServeError, OSError) as error:
                report.failed(job, error)

    def _video(self, job: Job, crew: Crew, report: Report) -> None:
        # Imported late: photos need no OpenCV here.
        from styleserve import video

        def stylise(frame: Image) -> Image:
            return self.remote.stylise(frame, job.style, self.options)

        assert job.source is not None
        assert job.target is not None
        notes: list[str] = []
        try:
            with saving(job.target, lambda: report.done(job, notes)) as part:
                notes += video.convert(job.source, part, stylise, crew)
        except (StyleServeError, OSError) as error:
            report.failed(job, error)

    def _call(self, job: Job) -> bytes:
        file = self.stdin if job.source is None else job.source.read_bytes()
        return self.remote.stylise_file(file, job.style, self.options)


def _save(job: Job, answer: Future[bytes], report: Report) -> None:
    if job.target is None:
        sys.stdout.buffer.write(answer.result())
        sys.stdout.buffer.flush()
        report.done(job)
        return
    with saving(job.target, lambda: report.done(job)) as part:
        part.write_bytes(answer.result())


def _no_bar(jobs: Sequence[Job]) -> bool | None:
    return None if len(jobs) > 1 else True  # None shows it on a terminal only
