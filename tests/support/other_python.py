"""Python environments beside the one of the tests: with everything except headrace, or with a copy of headrace.

They link to the packages of the environment of the tests, so that they are made in a moment.
"""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import tarfile
from pathlib import Path

import headrace
import pyspark_headrace

VENV_SECONDS_MAX = 60


def environment_without_headrace(folder: Path) -> Path:
    """Create an environment with the packages of this one, without headrace; return its interpreter."""
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(command, check=True, timeout=VENV_SECONDS_MAX)
    packages = packages_of(folder)
    for entry in (entry for path in site.getsitepackages() for entry in Path(path).iterdir()):
        if "headrace" not in entry.name and not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def packed_environment(folder: Path, archive: Path) -> Path:
    """Create an environment with a copy of headrace, and pack it for spark.archives; return the archive."""
    environment_without_headrace(folder)
    copy_headrace(packages_of(folder))
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(folder, ".")
    shutil.rmtree(folder)
    return archive


def copy_headrace(target: Path) -> None:
    """Copy the package as `pip install --target` would."""
    for module in (headrace, pyspark_headrace):
        source = Path(str(module.__file__)).parent
        shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.pyx", "*.c"))


def packages_of(folder: Path) -> Path:
    """Return the folder of the packages of an environment."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    return packages
