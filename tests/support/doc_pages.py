"""The documentation pages, README.md and docs/, and their blocks of code.

    page → fenced blocks, each with its language and line

The language decides what is done with a block (reader.py):

    python       run, all blocks of a page in one interpreter; blocks with tests are run by pytest
    sh           run, line by line
    toml         written to the file that its first line names; a pipeline must be valid
    properties   likewise
    yaml         likewise
    text, json   not run: output, and code for other programs
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
REGISTRY_ADDRESS = "http://localhost:8081"
LANGUAGES = ("python", "sh", "toml", "properties", "yaml", "text", "json")

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>.*)")
_FILE_NAME = re.compile(r"# (?P<name>[\w./-]+\.(toml|properties|yml|py))\b")


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    line: int
    """The number of its first line of code, from 1."""
    language: str
    text: str

    @property
    def location(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file name in the comment on its first line."""
        match = _FILE_NAME.match(self.text)
        return match["name"] if match else None

    @property
    def has_tests(self) -> bool:
        return self.language == "python" and re.search(r"^(async )?def test_", self.text, re.MULTILINE) is not None

    @property
    def uses_registry(self) -> bool:
        return REGISTRY_ADDRESS in self.text

    @property
    def uses_spark(self) -> bool:
        return self.language == "python" and re.search(r"headrace\.spark|pyspark|\bspark\.", self.text) is not None


def blocks_of(page: Path) -> list[Block]:
    """Return all fenced blocks of a page, in order."""
    blocks: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if opened is None and fence:
            opened, lines = (number + 1, fence["language"].strip(), fence["indent"]), []
        elif opened is not None and fence and not fence["language"]:
            blocks.append(Block(page, opened[0], opened[1], "\n".join(lines) + "\n"))
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(opened[2]))
    assert opened is None, f"{page.name}: the block from line {opened[0]} on has no end"
    return blocks


def files_of(page: Path) -> dict[str, str]:
    """Return the blocks of a page that are files, by name."""
    return {block.file_name: block.text for block in blocks_of(page) if block.file_name is not None}


def prose_of(page: Path) -> list[tuple[int, str]]:
    """Return the lines of a page outside of blocks, with their numbers."""
    inside, prose = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.fullmatch(line):
            inside = not inside
        elif not inside:
            prose.append((number, line))
    return prose
