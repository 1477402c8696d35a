"""Which file becomes which in what style: all decided, and refused, before anything is sent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from styleserve.errors import ConfigError
from styleserve.files import PHOTOS, STDIO, VIDEOS, Found, check_names, is_video

_SAME = {".jpeg": ".jpg", ".jfif": ".jpg", ".tiff": ".tif", ".heif": ".heic"}


@dataclass(frozen=True)
class Job:
    """One file to style."""

    source: Path | None  # None is standard input
    target: Path | None  # None is standard output
    style: str

    @property
    def is_video(self) -> bool:
        """Tell whether it is a video, not a photo."""
        return self.source is not None and is_video(self.source)

    def describe(self) -> dict[str, str]:
        """Tell it for people and JSON."""
        source, target = (str(path or STDIO) for path in (self.source, self.target))
        return {"source": source, "target": target, "style": self.style}


def plan(found: Sequence[Found], out: str, styles: Sequence[str], named: bool) -> list[Job]:
    """Make a job of each file and style; `named` puts the style into the name of the result.

    Raises:
        ConfigError: if `out` does not suit the files, two results would have one name, a name
            would be too long, or a result would replace one of the files.
    """
    if out == STDIO:
        return [_to_stdout(found, styles)]
    whole = _is_file(out)
    if whole:
        _check_file(found, Path(out), styles)
    elif any(one.path is None for one in found):
        raise ConfigError(f"a picture from standard input has no name for {out}; name a file or -")
    jobs: dict[Path, Job] = {}
    for one in found:
        for style in styles:
            target = Path(out) if whole else Path(out) / _place(one.place, style if named else "")
            _add(jobs, Job(one.path, target, style))
    _keep_sources(jobs, found)
    return list(jobs.values())


def settle(jobs: Sequence[Job], overwrite: bool, skip: bool) -> tuple[list[Job], list[Job]]:
    """Return the jobs to do and those to skip, because their results exist.

    Raises:
        ConfigError: if results exist and it was not said what to do about them.
    """
    existing = [job for job in jobs if job.target and job.target.exists()]
    if existing and not (overwrite or skip):
        count = f"{len(existing)} of {len(jobs)} results exist already, the first is"
        raise ConfigError(f"{count} {existing[0].target}; add --overwrite or --skip")
    skipped = existing if skip else []
    return [job for job in jobs if job not in skipped], skipped


def _is_file(out: str) -> bool:
    path = Path(out)
    return path.is_file() or (
        not path.is_dir() and not out.endswith("/") and path.suffix.lower() in PHOTOS + VIDEOS
    )


def _check_file(found: Sequence[Found], out: Path, styles: Sequence[str]) -> None:
    count = len(found) * len(styles)
    if count > 1:
        raise ConfigError(f"{out} is one file and there would be {count} results; name a folder")
    (source,) = (one.path for one in found)
    if source is None or (is_video(source) and is_video(out)):
        return
    suffixes = [_SAME.get(path.suffix.lower(), path.suffix.lower()) for path in (source, out)]
    if suffixes[0] != suffixes[1]:
        raise ConfigError(
            f"{out} would hold a {source.suffix} file, for results keep the format of the input; "
            f"call it {out.with_suffix(source.suffix)}"
        )


def _to_stdout(found: Sequence[Found], styles: Sequence[str]) -> Job:
    jobs = [Job(one.path, None, style) for one in found for style in styles]
    if len(jobs) != 1 or jobs[0].is_video:
        got = "a video" if len(jobs) == 1 else f"{len(jobs)} results"
        raise ConfigError(
            f"standard output takes one photo, got {got}; name a folder in place of -"
        )
    return jobs[0]


def _place(place: Path, style: str) -> Path:
    return place.with_name(f"{place.stem}-{style}{place.suffix}") if style else place


def _add(jobs: dict[Path, Job], job: Job) -> None:
    assert job.target is not None
    check_names(job.target)
    other = jobs.setdefault(job.target, job)
    if other.source and job.source and other.source.resolve() != job.source.resolve():
        raise ConfigError(
            f"{other.source} and {job.source} would both become {job.target}; style them apart"
        )


def _keep_sources(targets: Iterable[Path], found: Sequence[Found]) -> None:
    sources = {one.path.resolve() for one in found if one.path is not None}
    for target in targets:
        if target.resolve() in sources:
            raise ConfigError(f"{target} is one of the inputs and stays as it is; name another OUT")
