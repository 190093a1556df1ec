"""Authentication and authorization between brokers, with TLS and SASL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace import Producer
from headrace.broker import EmbeddedCluster
from headrace.broker.catalog.security import Acl, Acls, Users
from headrace.broker.cluster import peer as peers
from headrace.broker.cluster.peer import Peer, create_login
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.broker.security.scram import derive
from headrace.errors import Code, ConfigError
from headrace.wire.api.metadata import ApiVersionsRequest
from headrace.wire.api.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.support.cluster_in_loop import until
from tests.support.peers.connection import Connection
from tests.support.replica_cluster import ReplicaCluster, replica_cluster
from tests.support.secure_broker import OPENSSL, make_certificates
from tests.support.visible import visible

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")

SECONDS_MAX = 50
LIFETIME_MS = 1_600
CONNECTIONS = 4
"""That follow each other within the lifetime of one."""
LITERAL, ALLOW = 3, 3
JAAS = 'module required username="{user}" password="{password}" user_mill="secret";'
CLIENTS_OPEN = {
    "authorizer.class.name": "acl",
    "super.users": "User:ANONYMOUS",  # clients come by a listener of their own, and may do everything
    "inter.broker.listener.name": "INNER",
}


def plain(user: str = "mill", password: str = "secret") -> dict[str, object]:
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.inner.plain.sasl.jaas.config": JAAS.format(user=user, password=password),
    }


def scram(certificates: Path, user: str = "mill", password: str = "secret") -> dict[str, object]:
    return {
        **tls(certificates),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:SASL_SSL",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.inner.scram-sha-256.sasl.jaas.config": JAAS.format(user=user, password=password),
        "connections.max.reauth.ms": 1_000,  # every connection is made anew again and again
    }


def tls(certificates: Path) -> dict[str, object]:
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:SSL",
        "listener.name.inner.ssl.client.auth": "required",
        "ssl.keystore.location": str(certificates / "server-both.pem"),
        "ssl.truststore.location": str(certificates / "ca.pem"),
    }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


def let(cluster: ReplicaCluster, principal: str) -> None:
    """Create a principal with a password and the permission of a broker."""
    right = (Resource.CLUSTER, CLUSTER_NAME, LITERAL, principal, "*", Operation.CLUSTER_ACTION, ALLOW)
    credential = derive("SCRAM-SHA-256", "secret")
    cluster.controller.catalog.record(Acls.creation(Acl(*right)), Users.change("mill", "SCRAM-SHA-256", credential))


async def exercise(cluster: ReplicaCluster) -> None:
    """All requests between brokers: replication, forwarding, elections, transaction markers, reconnection."""
    created = await cluster.send_request(
        3, CreateTopicsRequest(topics=[CreatableTopic(name="made", num_partitions=3, replication_factor=3)]), 7
    )
    assert [row.error_code for row in created.topics] == [Code.NONE]
    await cluster.topic("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    producer = await asyncio.to_thread(
        Producer, bootstrap_servers=cluster.bootstrap, transactional_id="id", acks="all", max_block_ms=20_000
    )
    try:
        await asyncio.to_thread(producer.init_transactions)
        await asyncio.to_thread(transact, producer, b"one")
        await cluster.stop(3)
        await asyncio.to_thread(transact, producer, b"two")
        await delete_all(cluster, leader=2, index=1)
        await cluster.start(3)
        for index in range(3):
            await cluster.in_sync("t", 1, 2, 3, index=index)
        await asyncio.to_thread(transact, producer, b"three")
    finally:
        await asyncio.to_thread(producer.close, 5)
    for index in (0, 2):
        log = cluster.partition(cluster.registration("t", index).leader, "t", index).log
        await until("it is stable", lambda log=log: log.last_stable_offset == log.end_offset)  # type: ignore[misc]
        await cluster.logs_agree("t", index)
    with Connection(cluster.address(1)) as connection:
        values = await asyncio.to_thread(visible, connection, "t", committed=True)
    assert values == [b"one", b"two", b"three"]


def transact(producer: Producer, value: bytes) -> None:
    producer.begin_transaction()
    for index in range(3):
        producer.send("t", value, partition=index)
    producer.commit_transaction()


async def delete_all(cluster: ReplicaCluster, leader: int, index: int) -> None:
    row = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=index, offset=-1)])
    response = await cluster.send_request(leader, DeleteRecordsRequest(topics=[row], timeout_ms=10_000), 2)
    assert response.topics[0].partitions[0].error_code == Code.NONE


@pytest.mark.behaviour("B09")
@pytest.mark.parametrize(
    ("kind", "principal"),
    [("PLAIN", "User:mill"), ("SCRAM by TLS", "User:mill"), ("certificates", "User:CN=server")],
    ids=["plain", "scram", "certificates"],
)
def test_authenticated_brokers_need_only_cluster_action(
    tmp_path: Path, certificates: Path, kind: str, principal: str
) -> None:
    options = {"PLAIN": plain(), "SCRAM by TLS": scram(certificates), "certificates": tls(certificates)}[kind]

    async def main() -> None:
        async with asyncio.timeout(SECONDS_MAX), replica_cluster(tmp_path, 1, **CLIENTS_OPEN, **options) as cluster:
            let(cluster, "User:somebody-else")
            with pytest.raises(ConfigError, match=f"rejects this broker: {principal} is not authorized to CLUSTER"):
                await cluster.start(2)
            let(cluster, principal)
            for node in (2, 3):
                await cluster.start(node)
            await exercise(cluster)

    asyncio.run(main())


def test_a_connection_is_replaced_before_its_authentication_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a request would fail each time. It is renewed early, so that load makes no difference."""
    monkeypatch.setattr(peers, "RENEWED_AFTER", 1 / CONNECTIONS)

    async def main() -> None:
        lasting = {"connections.max.reauth.ms": LIFETIME_MS}
        async with (
            asyncio.timeout(SECONDS_MAX),
            replica_cluster(tmp_path, 1, **CLIENTS_OPEN, **plain(), **lasting) as one,
        ):
            inner = one.controller.listener("INNER")
            login = create_login(one.controller.config, "INNER")
            peer = Peer(lambda: (inner.host, inner.port), client_id="test", login=login)
            seen: set[object] = set()
            try:
                while len(seen) <= CONNECTIONS:  # longer than the first one could have lasted
                    await peer.request(ApiVersionsRequest(), 3, 5_000)
                    seen.add(peer._connection)
                    await asyncio.sleep(LIFETIME_MS / 20_000)
            finally:
                await peer.close()

    asyncio.run(main())


def test_an_embedded_cluster_can_have_an_inter_broker_listener() -> None:
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,INNER://127.0.0.1:0"}
    with EmbeddedCluster(
        3, {**CLIENTS_OPEN, **plain(), **listeners, "super.users": "User:ANONYMOUS;User:mill"}
    ) as three:
        topic = three.create_topic("t")
        with Producer(bootstrap_servers=three.bootstrap_servers, acks="all") as producer:
            assert producer.send(topic, b"one").result(20).offset == 0
        assert len(three.describe_topic(topic)[0]["isr"]) == 3


@pytest.mark.parametrize("kind", ["plain", "scram"])
def test_a_broker_with_wrong_credentials_is_rejected_at_once(tmp_path: Path, certificates: Path, kind: str) -> None:
    async def refusal(cluster: ReplicaCluster, options: Mapping[str, object]) -> str:
        with pytest.raises(ConfigError) as refused:
            await cluster.start(2, **options)
        return str(refused.value)

    async def main() -> None:
        right = plain() if kind == "plain" else scram(certificates)
        wrong = plain(password="guess") if kind == "plain" else scram(certificates, password="guess")
        async with asyncio.timeout(SECONDS_MAX), replica_cluster(tmp_path, 1, **CLIENTS_OPEN, **right) as cluster:
            let(cluster, "User:mill")
            said = await refusal(cluster, wrong)
            assert "rejects this broker: 127.0.0.1:" in said
            assert "did not accept user 'mill' with SASL" in said
            assert "guess" not in said
            nobody = {name: "m required;" for name in right if name.endswith("jaas.config")}
            assert 'sasl.jaas.config has no user: add username="…" password="…"' in await refusal(cluster, nobody)
            other = {"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}
            assert "it may be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in await refusal(cluster, other)
            await cluster.start(2)

    asyncio.run(main())
