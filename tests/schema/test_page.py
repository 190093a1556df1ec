"""Pages with a schema registry are run with Apicurio Registry at its address, and with the broker's."""

from __future__ import annotations

from contextlib import suppress

import pytest

from headrace.client.registry import SchemaRegistryClient
from headrace.errors import RegistryError
from tests.support.doc_pages import PAGES, blocks_of
from tests.support.reader import Reader

WITH_REGISTRY = [page for page in PAGES if any(block.uses_registry for block in blocks_of(page))]


def test_there_is_a_page_with_a_registry():
    assert "schemas" in [page.stem for page in WITH_REGISTRY]


@pytest.fixture
def empty_registry(registry):
    """A registry without subjects, as the reader of a page has it."""
    client = SchemaRegistryClient(registry.url)
    while subjects := client.get_subjects():
        before = len(subjects)
        for subject in subjects:
            with suppress(RegistryError):  # another schema refers to it: it is deleted in the next round
                client.delete_subject(subject)
                client.delete_subject(subject, permanent=True)
        assert len(client.get_subjects()) < before
    return registry


@pytest.mark.parametrize("page", WITH_REGISTRY, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, empty_registry, tmp_path, request):
    uses_spark = any(block.uses_spark for block in blocks_of(page))
    if uses_spark and empty_registry.name == "apicurio" and "not slow" in request.config.getoption("-m"):
        pytest.skip("a page with Spark runs on Apicurio in `make test-spark` only")
    with Reader(tmp_path / "reader", registry_url=empty_registry.url) as reader:
        reader.read(page)
