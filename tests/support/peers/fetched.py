"""Programs that tests need: downloaded or built once, into a folder that git ignores."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

CACHE = Path(__file__).parents[3] / ".cache"
DOWNLOAD_SECONDS_MAX = 900
_OUTPUT_CHARS_MAX = 4000


def require(*programs: str, purpose: str = "tests against real Kafka") -> None:
    """Skip the test if a program is missing; where nothing may be missing (CI=true), fail it."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        skip(f"no {' and no '.join(missing)} on the PATH, which {purpose} need")


def skip(reason: str) -> NoReturn:
    """Skip the test; where nothing may be missing (CI=true), fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def fetched(name: str, fill: Callable[[Path], None], *, cache: Path | None = None, others: str = "") -> Path:
    """Return the folder `name` of the cache; if it is missing, create it with `fill`, in one process at a time.

    `others` is a pattern of folders that are deleted when it is created.
    """
    cache = cache or CACHE
    folder = cache / name
    if not folder.exists():
        cache.mkdir(exist_ok=True)
        kind = name.split("-")[0]
        with only_one_run(cache / f"{kind}.lock"):
            if not folder.exists():
                for left_over in cache.glob(f"{kind}-*.partial"):  # of a killed run: this process holds the lock
                    shutil.rmtree(left_over)
                partial = folder.with_name(folder.name + ".partial")
                fill(partial)
                for old in cache.glob(others) if others else ():
                    if old != partial:
                        shutil.rmtree(old)
                partial.rename(folder)
    return folder


def run(command: list[str], what: str, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run a command that downloads or builds; if it fails, the error has its output."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DOWNLOAD_SECONDS_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"{what}:\n{done.stdout[-_OUTPUT_CHARS_MAX:]}")


def digest(folder: Path) -> str:
    """Return a short hash of the files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@contextmanager
def only_one_run(path: Path) -> Iterator[None]:
    """Hold a file lock; the system releases it when the process ends."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
