"""Runs Java programs of the tests on Kafka's jars."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.peers.class_archive import archive_options

JAVA_SECONDS_MAX = 60
QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
# Tools run for a second or two, without an optimising compiler and parallel garbage collection.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m")


def java_command(
    jars: Path, main: str, *args: str, options: tuple[str, ...] = (), classes: Path | None = None
) -> list[str]:
    """Return the command line that runs the class `main` from the jars or `classes`."""
    path = f"{jars}/*" if classes is None else f"{jars}/*:{classes}"  # an archive of classes needs the jars first
    archive = archive_options(archive_name(jars), jars)
    return ["java", *QUIET, *options, *archive, "-cp", path, main, *args]


def archive_name(jars: Path) -> str:
    """Return the name of the class archive of a folder of jars."""
    return jars.name.replace("-", "_")


def run(command: list[str]) -> str:
    """Run a command and return its output; raise with the output if it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=JAVA_SECONDS_MAX,
    )
    if done.returncode:
        output = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        raise RuntimeError(f"{' '.join(command[:1] + command[-4:])} gave {done.returncode}:\n{output}")
    return done.stdout


class JavaRunner:
    """Runs programs of one source file each, compiled once for their jars."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, jars: Path, source: Path, *args: object) -> str:
        """Run the program and return its output."""
        return run(self.command(jars, source, *args))

    def command(self, jars: Path, source: Path, *args: object) -> list[str]:
        """Return the command line of the program."""
        classes = self._folder / jars.name / source.stem
        if not classes.exists():
            self._compile(jars, source, classes)
        texts = [str(arg) for arg in args]
        return java_command(jars, source.stem, *texts, options=SHORT_LIVED, classes=classes)

    def _compile(self, jars: Path, source: Path, classes: Path) -> None:
        partial = classes.with_name(classes.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        # Starts quickly, as above. Packages next to the source are compiled if needed.
        quick = [f"-J{option}" for option in SHORT_LIVED]
        run(["javac", *quick, "-cp", f"{jars}/*", "-sourcepath", str(source.parent), "-d", str(partial), str(source)])
        partial.rename(classes)
