"""SCRAM users: created, changed, deleted, persistent and never revealed."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from headrace.broker import EmbeddedBroker
from headrace.errors import Code
from headrace.wire.api.access import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from tests.support.peers.connection import Connection
from tests.support.scram_users import salted
from tests.support.topics import unique

SECONDS = 20
SHA_256, SHA_512 = 1, 2


def upsertion(name, mechanism=SHA_256, **changes):
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, **{**salted(mechanism, "secret"), **changes})


def alter(connection, *, upsertions=(), deletions=()):
    response = connection.call(AlterUserScramCredentialsRequest(upsertions=upsertions, deletions=deletions), 0)
    return {row.user: row.error_code for row in response.results}


def describe(connection, *names):
    users = [UserName(name=name) for name in names] or None
    response = connection.call(DescribeUserScramCredentialsRequest(users=users), 0)
    assert response.error_code == 0
    return {
        row.user: row.error_code or [(info.mechanism, info.iterations) for info in row.credential_infos]
        for row in response.results
    }


def test_users_are_created_changed_and_deleted(connection):
    name = unique("ann")
    assert alter(connection, upsertions=[upsertion(name)]) == {name: Code.NONE}
    assert alter(connection, upsertions=[upsertion(name, SHA_512, **salted(SHA_512, "x", 8192))]) == {name: Code.NONE}
    assert describe(connection, name) == {name: [(SHA_256, 4096), (SHA_512, 8192)]}
    assert describe(connection)[name] == [(SHA_256, 4096), (SHA_512, 8192)]
    gone = ScramCredentialDeletion(name=name, mechanism=SHA_256)
    assert alter(connection, deletions=[gone]) == {name: Code.NONE}
    assert describe(connection, name) == {name: [(SHA_512, 8192)]}
    assert alter(connection, deletions=[gone]) == {name: Code.RESOURCE_NOT_FOUND}


def test_invalid_changes_are_rejected_and_the_others_applied(connection):
    good, name = unique("good"), unique("bad")
    for bad, code in (
        (upsertion(name, iterations=4095), Code.UNACCEPTABLE_CREDENTIAL),
        (upsertion(name, iterations=16_385), Code.UNACCEPTABLE_CREDENTIAL),
        (upsertion(name, salt=b""), Code.UNACCEPTABLE_CREDENTIAL),
        (upsertion(name, salted_password=b"short"), Code.UNACCEPTABLE_CREDENTIAL),
        (upsertion(name, SHA_256).replace(mechanism=3), Code.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(""), Code.UNACCEPTABLE_CREDENTIAL),
    ):
        assert alter(connection, upsertions=[bad, upsertion(good)]) == {bad.name: code, good: Code.NONE}
    assert describe(connection, name, good) == {name: Code.RESOURCE_NOT_FOUND, good: [(SHA_256, 4096)]}


def test_a_duplicate_user_in_a_request_is_rejected(connection):
    name = unique("twice")
    assert alter(connection, upsertions=[upsertion(name), upsertion(name, SHA_512)]) == {name: Code.DUPLICATE_RESOURCE}
    assert describe(connection, name) == {name: Code.RESOURCE_NOT_FOUND}
    assert describe(connection, name, name) == {name: Code.DUPLICATE_RESOURCE}


def test_librdkafka_manages_users(broker):
    admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    name = unique("ann")
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 5000)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, info, b"secret")])[name].result(SECONDS)
    credentials = admin.describe_user_scram_credentials([name])[name].result(SECONDS).scram_credential_infos
    assert [(each.mechanism, each.iterations) for each in credentials] == [(ScramMechanism.SCRAM_SHA_512, 5000)]
    gone = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([gone])[name].result(SECONDS)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_users_survive_a_restart(end):
    with EmbeddedBroker() as broker:
        with Connection(broker.bootstrap) as connection:
            assert alter(connection, upsertions=[upsertion("ann")]) == {"ann": Code.NONE}
        getattr(broker, end)()
        broker.start()
        with Connection(broker.bootstrap) as connection:
            assert describe(connection) == {"ann": [(SHA_256, 4096)]}
