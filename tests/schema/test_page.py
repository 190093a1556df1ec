"""docs/schemas.md is run with Apicurio Registry at its address."""

from __future__ import annotations

from tests.support.doc_pages import PROJECT
from tests.support.reader import Reader


def test_the_blocks_of_the_page_run(apicurio_registry, tmp_path):
    with Reader(tmp_path / "reader", registry_url=apicurio_registry.url) as reader:
        reader.read(PROJECT / "docs" / "schemas.md")
