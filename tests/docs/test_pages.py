"""README.md and docs/: all commands and code blocks are run."""

from __future__ import annotations

import re

import pytest

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.config import parse_properties
from headrace.producer.options import PRODUCER_OPTIONS
from tests.support.doc_pages import LANGUAGES, PAGES, PROJECT, blocks_of, prose_of

PAGE_SECONDS_MAX = 900
COMMANDS = ("headrace", "make", "pip", "python", "git")
IN_ONE_GO = "spark"
"""`pytest tests/docs -k spark` runs the pages with Spark."""


def uses_spark(page):
    return any(block.uses_spark for block in blocks_of(page)) or any(
        block.language == "sh" and re.search(r"headrace (pipeline|audit)", block.text) for block in blocks_of(page)
    )


def named(page):
    return f"{IN_ONE_GO}-{page.stem}" if uses_spark(page) else page.stem


def with_marks(page):
    """`make test` runs the README; other pages with Spark take minutes and are part of `make test-spark`."""
    marks = [pytest.mark.timeout(PAGE_SECONDS_MAX)]
    if uses_spark(page) and page.stem != "README":
        marks.append(pytest.mark.slow)
    return pytest.param(page, marks=marks, id=named(page))


def uses_registry(page):
    """Such pages are run by tests/schema/test_page.py, which has a registry."""
    return any(block.uses_registry for block in blocks_of(page))


@pytest.mark.parametrize("page", [with_marks(page) for page in PAGES if not uses_registry(page)])
def test_the_blocks_of_a_page_run(page, request):
    reader = request.getfixturevalue("spark_reader" if uses_spark(page) else "plain_reader")
    reader.read(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_has_a_language(page):
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.location}: the language is {block.language!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_hides_from_the_tests_in_an_indented_block(page):
    for number, line in prose_of(page):
        match = re.match(rf"    ({'|'.join(COMMANDS)}) ", line)
        assert match is None, f"{page.name}:{number}: put it into a block of its own: {line.strip()}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_have_existing_targets(page):
    for number, line in prose_of(page):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", line):
            if not re.match(r"https?:", target):
                assert (page.parent / target).exists(), f"{page.name}:{number}: there is no {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_properties_files_have_known_options(page):
    for block in blocks_of(page):
        if block.language == "properties":
            for name in parse_properties(block.text):
                assert name in PRODUCER_OPTIONS or name in BROKER_OPTIONS, f"{block.location}: there is no {name}"


def test_the_readme_lists_the_ci_commands():
    readme = (PROJECT / "README.md").read_text()
    commands = [line for line in (PROJECT / ".ci" / "run").read_text().splitlines() if line.startswith("make test")]
    assert commands
    assert all(re.search(rf"^{command}\b", readme, re.MULTILINE) for command in commands)
