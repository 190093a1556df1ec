"""Apply each mutant of tests/mutants.md to a copy of the tree and check that its test fails.

python tools/mutants.py            all of them
python tools/mutants.py PATTERN    those whose title contains PATTERN
python tools/mutants.py --list tests/simulation/bugs.md [PATTERN]
                                   the bugs of another list, which the simulation finds: a test is `seed N`
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST_SECONDS_MAX = 300
COPIED = ("src", "tests", "tools", "bench", "docs", "examples", "pyproject.toml", "setup.py", "README.md", "Makefile")
_ENTRY = re.compile(
    r"^### (?P<title>[^\n]+)\n`(?P<path>[^`]+)` is caught by `(?P<test>[^`]+)`\.\n+```diff\n(?P<diff>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
TESTS_FAILED = 1
"""The exit code of pytest, and of the simulation."""
SEED = "seed "
BUG_SECONDS = "120"
"""Simulated time with faults; an entry of the list has a seed for it."""


class MutantError(Exception):
    """A mutant cannot be applied, or its test does not pass without it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    title: str
    path: str
    test: str
    before: str
    after: str


def load(text: str) -> list[Mutant]:
    """Return the mutants described in `text`, the content of tests/mutants.md."""
    outside_form = re.sub(r"^````.*?^````$", "", text, flags=re.MULTILINE | re.DOTALL)
    mutants = []
    for entry in _ENTRY.finditer(outside_form):
        lines = entry["diff"].splitlines(keepends=True)
        before = "".join(line[1:] or line for line in lines if line[0] in "- \n")
        after = "".join(line[1:] or line for line in lines if line[0] in "+ \n")
        mutants.append(Mutant(entry["title"], entry["path"], entry["test"], before, after))
    titles = len(re.findall(r"^### ", outside_form, re.MULTILINE))
    if titles != len(mutants):
        raise MutantError(f"the list has {titles} titles, but {len(mutants)} entries of the documented form")
    return mutants


def apply(mutant: Mutant, tree: Path) -> None:
    """Change the file of `mutant` below `tree`."""
    path = tree / mutant.path
    source = path.read_text()
    count = source.count(mutant.before)
    if count != 1:
        raise MutantError(f"{mutant.title}: the lines to replace occur {count} times in {mutant.path}, expected once")
    path.write_text(source.replace(mutant.before, mutant.after))


def run_test(test: str, tree: Path) -> bool:
    """Run a test in `tree`; return whether it passes. A timeout is a failure."""
    process = subprocess.Popen(
        command_of(test),
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that the brokers of a test that hangs can be killed with it
    )
    try:
        output, _ = process.communicate(timeout=TEST_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    if process.returncode not in (0, TESTS_FAILED):
        raise MutantError(f"{test} could not be run: it ended with {process.returncode}\n{output}")
    return process.returncode == 0


def command_of(test: str) -> list[str]:
    """Return the command that fails with exit code 1 if a test, or the simulation with a seed, does."""
    if test.startswith(SEED):
        return [sys.executable, "-m", "tests.simulation", "--seed", test.removeprefix(SEED), "--seconds", BUG_SECONDS]
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]


def environment(tree: Path) -> dict[str, str]:
    """Return the environment for imports from `tree`, without bytecode: a mutant may be as long as the original."""
    return {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def check_import(tree: Path) -> None:
    """Raise unless tests in `tree` import headrace from there: the installed one has no mutants."""
    command = [sys.executable, "-c", "import headrace; print(headrace.__file__)"]
    path = subprocess.check_output(command, cwd=tree, env=environment(tree), text=True).strip()
    if not Path(path).is_relative_to(tree):
        raise MutantError(f"headrace is imported from {path}, expected from {tree / 'src'}")


def copy_tree(target: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
        elif source.exists():
            shutil.copy2(source, target / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Apply mutants, and check that their tests fail.")
    parser.add_argument("pattern", nargs="?", default="", help="a part of the title")
    parser.add_argument("--list", default="tests/mutants.md", help="the file with the mutants")
    arguments = parser.parse_args()
    mutants = [
        mutant
        for mutant in load((ROOT / arguments.list).read_text())
        if arguments.pattern.lower() in mutant.title.lower()
    ]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="headrace-mutants-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        copy_tree(tree)
        check_import(tree)
        for test in sorted({mutant.test for mutant in mutants}):
            if not run_test(test, tree):
                raise MutantError(f"{test} does not pass without any mutant")
        for mutant in mutants:
            original = (tree / mutant.path).read_text()
            apply(mutant, tree)
            is_killed = not run_test(mutant.test, tree)
            (tree / mutant.path).write_text(original)
            print(f"{'killed  ' if is_killed else 'SURVIVED'}  {mutant.title}", flush=True)
            if not is_killed:
                survivors.append(mutant)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed")
    if survivors:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except MutantError as error:
        sys.exit(f"mutants: {error}")
