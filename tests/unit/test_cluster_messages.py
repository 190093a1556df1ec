"""Messages between brokers: as Kafka's where they exist there, and not advertised."""

from __future__ import annotations

import dataclasses

import kio.index
import pytest

from headrace.broker.handlers import SUPPORTED, supported
from headrace.broker.handlers.api_versions import api_rows
from headrace.wire.api import APIS, BETWEEN_BROKERS, api_name, request_class, response_class

OURS = 30_000
KAFKAS = sorted(key for key in BETWEEN_BROKERS if key < OURS)


@pytest.mark.parametrize("key", KAFKAS, ids=api_name)
def test_fields_have_kafkas_names_and_order(key: int) -> None:
    version = request_class(key).versions.last
    theirs = (kio.index.load_request_schema(key, version), kio.index.load_response_schema(key, version))
    for cls, their_cls in zip((request_class(key), response_class(key)), theirs, strict=True):
        names = [field.name.removesuffix("_ms") for field in dataclasses.fields(their_cls)]
        assert [name.removesuffix("_ms") for name in cls.fields] == names


@pytest.mark.parametrize("key", sorted(BETWEEN_BROKERS), ids=api_name)
def test_every_request_has_a_response_and_a_handler_of_the_same_version(key: int) -> None:
    request, response = request_class(key), response_class(key)
    assert request.api_key == response.api_key == key
    assert request.versions == response.versions
    assert request.versions.first == request.versions.last
    assert supported(key) == (*request.versions, "inter_broker")
    message = request()
    assert request.decode(request.versions.last, message.encode(request.versions.last)) == message


def test_inter_broker_requests_are_not_advertised() -> None:
    assert not BETWEEN_BROKERS & set(APIS)
    assert not BETWEEN_BROKERS & SUPPORTED.keys()
    assert not BETWEEN_BROKERS & {row.api_key for row in api_rows()}
