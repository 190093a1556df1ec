"""The pages that people read: README.md and docs/, and the blocks of code in them.

    page → fenced blocks, each with its language and line

The language says what becomes of a block (reader.py):

    python       run, all of a page in one interpreter; one with tests in it is run by pytest
    sh           run, line by line
    toml         kept as the file that its first line names; a pipeline has to make sense
    properties   kept likewise
    text, json   shown: what is printed, what runs elsewhere, what other libraries want
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
LANGUAGES = ("python", "sh", "toml", "properties", "text", "json")

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>.*)")
_FILE_NAME = re.compile(r"# (?P<name>[\w./-]+\.(toml|properties|py))\b")


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    line: int
    """Of its first line of code, from 1."""
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that it says it is, in a comment on its first line."""
        found = _FILE_NAME.match(self.text)
        return found["name"] if found else None

    @property
    def has_tests(self) -> bool:
        return self.language == "python" and re.search(r"^(async )?def test_", self.text, re.MULTILINE) is not None

    @property
    def uses_spark(self) -> bool:
        return self.language == "python" and re.search(r"headrace\.spark|pyspark|\bspark\.", self.text) is not None


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if opened is None and fence:
            opened, lines = (number + 1, fence["language"].strip(), fence["indent"]), []
        elif opened is not None and fence and not fence["language"]:
            found.append(Block(page, opened[0], opened[1], "\n".join(lines) + "\n"))
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(opened[2]))
    assert opened is None, f"{page.name}: the block from line {opened[0]} on has no end"
    return found


def prose_of(page: Path) -> list[tuple[int, str]]:
    """The lines of a page that are in no block, with their numbers."""
    inside, found = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.fullmatch(line):
            inside = not inside
        elif not inside:
            found.append((number, line))
    return found
