"""Pages with a schema registry are run with Apicurio Registry at its address, and with the broker's."""

from __future__ import annotations

import pytest

from tests.support.doc_pages import PAGES, blocks_of
from tests.support.reader import Reader

WITH_REGISTRY = [page for page in PAGES if any(block.uses_registry for block in blocks_of(page))]


def test_there_is_a_page_with_a_registry():
    assert "schemas" in [page.stem for page in WITH_REGISTRY]


def with_marks(page):
    """Pages with Spark are part of `make test-spark`."""
    uses_spark = any(block.uses_spark for block in blocks_of(page))
    return pytest.param(page, marks=[pytest.mark.slow] if uses_spark else [], id=page.stem)


@pytest.mark.parametrize("page", [with_marks(page) for page in WITH_REGISTRY])
def test_the_blocks_of_a_page_run(page, registry, tmp_path):
    with Reader(tmp_path / "reader", registry_url=registry.url) as reader:
        reader.read(page)
