"""docs/architecture.md and CONTRIBUTING.md: the files and functions that they name exist, and the counts are right."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[2]
SOURCES = PROJECT / "src" / "headrace"
PAGE = PROJECT / "docs" / "architecture.md"
GUIDE = PROJECT / "CONTRIBUTING.md"

JOURNEYS = "## Three journeys"
COLUMNS = ["", "function", "file", "thread", "lock", "what happens"]
RETURN = "↩"
PACKAGES = ("pyspark_headrace",)
SUFFIXES = (".py", ".pyx", ".pxi")

CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[\w./-]*\w\.(?:pyx?|pxi|pyi|md|toml)")
METHOD = re.compile(r"_?[A-Z]\w*\.\w+")
FUNCTION = re.compile(r"_?[a-z][a-z0-9]*(?:_[a-z0-9]+)+|_[a-z]\w*")
COUNTS = re.compile(r"Files: (\d+)\. Returns to an earlier file: (\d+)\.")
DEFINITION = re.compile(r"(?:\b(?:def|class) |^)(\w+)", re.MULTILINE)
CYTHON_CLASS = re.compile(r"^(?:cdef )?class (\w+)")
CYTHON_FUNCTION = re.compile(r"^( *)(?:cp?def|def)\b[^=#]*?\b(\w+)\(")


class Row(NamedTuple):
    """A step of a journey."""

    number: str
    functions: list[str]
    file: str
    text: str
    line: int

    @property
    def is_return(self) -> bool:
        return RETURN in self.number


def section(heading: str) -> list[tuple[int, str]]:
    """Return the lines of a section, with their numbers."""
    lines = list(enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1))
    start = next(i for i, (_, line) in enumerate(lines) if line == heading)
    length = next((i for i, (_, line) in enumerate(lines[start + 1 :]) if line.startswith("## ")), len(lines))
    return lines[start : start + 1 + length]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables() -> list[list[Row]]:
    """Return the tables of the journeys."""
    journeys: list[list[Row]] = []
    is_inside = False
    for number, line in section(JOURNEYS):
        if not line.startswith("|"):
            is_inside = False
        elif not is_inside:
            assert cells(line) == COLUMNS, f"line {number}: the columns of a journey are {COLUMNS}"
            is_inside = True
            journeys.append([])
        elif not line.startswith("|---"):
            step, functions, file, _, _, text = cells(line)
            (path,) = CODE.findall(file)
            journeys[-1].append(Row(step, CODE.findall(functions), path, text, number))
    return journeys


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the functions, classes and methods that a source file defines, methods as Class.method."""
    text = path.read_text(encoding="utf-8")
    return frozenset(python_names(ast.parse(text)) if path.suffix == ".py" else cython_names(text))


def python_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + child.name)
                collect(child, prefix)  # attributes that a method assigns
            elif isinstance(child, ast.ClassDef):
                names.add(child.name)
                collect(child, f"{child.name}.")
            elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
                names.add(prefix + child.attr)
            elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                names.add(prefix + child.id)
            else:
                collect(child, prefix)

    collect(tree, "")
    return names


def cython_names(text: str) -> set[str]:
    names: set[str] = set()
    owner = ""
    for line in text.splitlines():
        if declared := CYTHON_CLASS.match(line):
            owner = f"{declared[1]}."
            names.add(declared[1])
        elif line and not line[0].isspace() and not line.startswith(("#", ")")):
            owner = ""
        if function := CYTHON_FUNCTION.match(line):
            names.add((owner if function[1] else "") + function[2])
    return names


@cache
def definitions() -> dict[str, list[Path]]:
    """Return the files that define each function, method and class of the package, by their own names."""
    files: defaultdict[str, list[Path]] = defaultdict(list)
    for path in (path for path in SOURCES.rglob("*") if path.suffix in SUFFIXES):
        for name in DEFINITION.findall(path.read_text(encoding="utf-8")):
            files[name].append(path)
    return files


def is_defined(code: str) -> bool:
    """Return whether a source file defines a function, or an attribute or method of a class."""
    owner = code.partition(".")[0]
    files = definitions().get(owner, [])
    return any(code in names_in(path) for path in files) if owner != code else bool(files)


def test_every_journey_has_its_steps():
    assert len(tables()) >= 3
    assert all(len(table) >= 3 for table in tables())


def test_functions_of_a_step_are_in_its_file():
    wrong = []
    for row in (row for table in tables() for row in table):
        path = SOURCES / row.file
        defined = names_in(path) if path.is_file() else frozenset()
        wrong += [f"line {row.line}: {row.file}: {name}" for name in row.functions if name not in defined]
        assert row.functions, f"line {row.line}"
    assert not wrong


def test_names_and_paths_in_the_page_are_in_the_source():
    assert not undefined(PAGE, is_name)


def test_methods_and_paths_in_the_guide_are_in_the_source():
    """Functions are not checked: the guide names some that its reader writes."""
    assert not undefined(GUIDE, METHOD.fullmatch)


def undefined(page: Path, is_checked: Callable[[str], object]) -> list[str]:
    """Return the paths and the checked names in code font that do not exist."""
    missing = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for code in CODE.findall(line):
            is_missing = not is_file(code) if PATH.fullmatch(code) else is_checked(code) and not is_defined(code)
            if is_missing:
                missing.append(f"line {number}: {code}")
    return missing


def is_file(path: str) -> bool:
    """Return whether a path is in the project, in the package, or in one of the package's folders."""
    return any((root / path).is_file() for root in (PROJECT, SOURCES, *(f for f in SOURCES.iterdir() if f.is_dir())))


def is_name(code: str) -> bool:
    """Return whether text in code font is a Class.method or a function_name: a single word may be anything."""
    return METHOD.fullmatch(code) is not None or (FUNCTION.fullmatch(code) is not None and code not in PACKAGES)


def test_steps_that_return_to_an_earlier_file_are_marked():
    for table in tables():
        seen: list[str] = []
        for row in table:
            is_return = row.file in seen and row.file != seen[-1]
            assert row.is_return == is_return, f"line {row.line}: {row.file} after {seen}"
            seen.append(row.file)


def test_counts_of_files_and_returns_are_those_of_the_table_above():
    lines = section(JOURNEYS)
    counted = 0
    for number, line in lines:
        if (counts := COUNTS.search(line)) is None:
            continue
        table = [table for table in tables() if table[-1].line < number][-1]
        files = len({row.file for row in table})
        returns = sum(row.is_return + row.text.count(RETURN) for row in table)
        assert (int(counts[1]), int(counts[2])) == (files, returns), f"line {number}"
        counted += 1
    assert counted == 3


def test_a_wrong_name_is_noticed():
    assert "Sender.run_once" in names_in(SOURCES / "producer/sender.py")
    assert "Sender.run_twice" not in names_in(SOURCES / "producer/sender.py")
    assert "TopicAppender.append" in names_in(SOURCES / "producer/_send/compiled.pyx")
    assert "FastSend.append" not in names_in(SOURCES / "producer/_send/compiled.pyx")
