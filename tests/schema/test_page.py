"""Pages with a schema registry are run with Apicurio Registry at its address, and with the broker's."""

from __future__ import annotations

import pytest

from tests.support.doc_pages import PAGES, blocks_of
from tests.support.reader import Reader

WITH_REGISTRY = [page for page in PAGES if any(block.uses_registry for block in blocks_of(page))]


def test_there_is_a_page_with_a_registry():
    assert "schemas" in [page.stem for page in WITH_REGISTRY]


@pytest.mark.parametrize("page", WITH_REGISTRY, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, registry, tmp_path):
    with Reader(tmp_path / "reader", registry_url=registry.url) as reader:
        reader.read(page)
