"""Apply each mutant of tests/mutants.md to a copy of the tree and check that its test fails.

python tools/mutants.py            all of them
python tools/mutants.py PATTERN    those whose title contains PATTERN
"""

from __future__ import annotations

import os
import re
import shutil
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
PYTEST_TESTS_FAILED = 1


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
        before = "".join(line[1:] for line in lines if line[0] in "- ")
        after = "".join(line[1:] for line in lines if line[0] in "+ ")
        mutants.append(Mutant(entry["title"], entry["path"], entry["test"], before, after))
    titles = len(re.findall(r"^### ", outside_form, re.MULTILINE))
    if titles != len(mutants):
        raise MutantError(f"tests/mutants.md: {titles} titles, but {len(mutants)} entries of the documented form")
    return mutants


def apply(mutant: Mutant, tree: Path) -> None:
    """Change the file of `mutant` below `tree`."""
    path = tree / mutant.path
    source = path.read_text()
    count = source.count(mutant.before)
    if count != 1:
        raise MutantError(f"{mutant.title}: the lines to replace occur {count} times in {mutant.path}, expected once")
    path.write_text(source.replace(mutant.before, mutant.after))


def run_test(mutant: Mutant, tree: Path) -> int:
    """Run the test of `mutant` in `tree` and return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.test]
    environment = {"PYTHONPATH": str(tree / "src")}
    try:
        result = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, **environment},
            capture_output=True,
            timeout=TEST_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return PYTEST_TESTS_FAILED
    return result.returncode


def copy_tree(target: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
        elif source.exists():
            shutil.copy2(source, target / name)


def main() -> None:
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    mutants = [
        mutant
        for mutant in load((ROOT / "tests" / "mutants.md").read_text())
        if pattern.lower() in mutant.title.lower()
    ]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="headrace-mutants-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        copy_tree(tree)
        for mutant in mutants:
            original = (tree / mutant.path).read_text()
            if run_test(mutant, tree) != 0:
                raise MutantError(f"{mutant.title}: {mutant.test} does not pass without the mutant")
            apply(mutant, tree)
            code = run_test(mutant, tree)
            (tree / mutant.path).write_text(original)
            is_killed = code == PYTEST_TESTS_FAILED
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
