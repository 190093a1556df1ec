"""Class data archives (CDS) of the JVMs that tests start: a JVM with one starts in about half the time.

A JVM writes the archive at its end (`-XX:ArchiveClassesAtExit`), once for each set of jars; the others map it
(`-XX:SharedArchiveFile`). A JVM ignores an archive that does not fit its class path: then it is only slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.support.peers import fetched

JAVA_SECONDS_MAX = 30
ARCHIVE = "classes.jsa"


def write_archive(name: str, jars: Path, write: Callable[[str], None]) -> None:
    """Write the archive for a folder of jars unless there is one.

    `write` runs a JVM with the option that it gets, which writes the archive.
    """

    def fill(partial: Path) -> None:
        partial.mkdir(parents=True)
        write(f"-XX:ArchiveClassesAtExit={partial / ARCHIVE}")

    fetched.fetched(archive_folder(name, jars).name, fill, others=f"classes_{name}-*")


def archive_options(name: str, jars: Path) -> tuple[str, ...]:
    """Return the JVM options to use the archive for a folder of jars; none if there is no archive."""
    archive = archive_folder(name, jars) / ARCHIVE
    # Without log: a JVM warns of an archive that does not fit on its standard output, which tests read.
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") if archive.exists() else ()


@cache
def archive_folder(name: str, jars: Path) -> Path:
    """Return the folder of the archive for these jars and this JVM; it exists once the archive was written."""
    facts = [_java_version(), str(jars.resolve())]
    facts += [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in sorted(jars.glob("*.jar"))]
    return fetched.CACHE / f"classes_{name}-{hashlib.sha256(os.fsencode(repr(facts))).hexdigest()[:12]}"


@cache
def _java_version() -> str:
    command = ["java", "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=JAVA_SECONDS_MAX, check=True).stderr
