"""Joining a cluster: node ids, errors, authorization and TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.cluster.controller import Controller
from headrace.broker.ports import free_port
from headrace.errors import Code, ConfigError
from headrace.wire.api.inter_broker import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    CatalogFetchRequest,
    EnsureTopicRequest,
    ForwardRequest,
)
from tests.support.broker_in_loop import broker_in_loop
from tests.support.cluster_in_loop import cluster_in_loop, create, made, metadata, send_request, until
from tests.support.group_rig import on_loop
from tests.support.secure_broker import OPENSSL, make_certificates

QUICK = {"initial.broker.registration.timeout.ms": 400}


@on_loop
async def test_a_duplicate_node_id_is_rejected(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 2) as brokers:
        cluster_id = brokers[0].catalog.identity.cluster_id
        request = BrokerRegistrationRequest(cluster_id=cluster_id, incarnation_id=b"i" * 16, rack=None)
        for node_id in (1, 2):
            response: Any = await send_request(brokers[0], request.replace(broker_id=node_id), 4)
            assert response.error_code == Code.DUPLICATE_BROKER_REGISTRATION
        response = await send_request(brokers[0], request.replace(broker_id=3, cluster_id="other"), 4)
        assert response.error_code == Code.INCONSISTENT_CLUSTER_ID
        response = await send_request(brokers[1], request.replace(broker_id=3), 4)
        assert response.error_code == Code.NOT_CONTROLLER
        assert isinstance(response, BrokerRegistrationResponse)
        assert set(brokers[0].catalog.brokers.by_id) == {1, 2}


@on_loop
async def test_a_broker_that_cannot_join_reports_the_reason(tmp_path: Path) -> None:
    options = {"node.id": 2, "headrace.controller": "127.0.0.1:1", **QUICK}
    with pytest.raises(ConfigError, match=r"headrace.controller: no broker responds at 127\.0\.0\.1:1: start it"):
        async with broker_in_loop(tmp_path / "2", **options):
            pass
    with pytest.raises(ConfigError, match=r"it may be HOST:PORT"):
        async with broker_in_loop(tmp_path / "2", **{**options, "headrace.controller": "there"}):
            pass
    async with broker_in_loop(tmp_path / "1") as broker1, broker_in_loop(tmp_path / "other", **{"node.id": 2}):
        pass
    async with broker_in_loop(tmp_path / "1") as broker1:
        with pytest.raises(ConfigError, match="the data of this broker belong to cluster"):
            async with broker_in_loop(
                tmp_path / "other", **{"node.id": 2, "headrace.controller": broker1.listeners[0].address}
            ):
                pass


@on_loop
async def test_the_folder_of_a_follower_cannot_start_as_a_controller(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 2):
        pass
    with pytest.raises(
        ConfigError, match=r"follower of controller 1, but this is broker 2 without headrace\.controller: set it"
    ):
        async with broker_in_loop(tmp_path / "2", **{"node.id": 2}):
            pass


@on_loop
async def test_a_controller_without_inter_broker_credentials_cannot_be_joined(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = {"sasl.plain.users": "ann:secret", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
    alone = {**options, "listeners": f"SASL_PLAINTEXT://{address}"}
    joining = {
        **options,
        **QUICK,
        "node.id": 2,
        "headrace.controller": address,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.jaas.config": 'module required username="ann" password="secret";',
    }
    async with broker_in_loop(tmp_path / "1", **alone) as broker1:
        with pytest.raises(ConfigError, match="the controller has no user and password for other brokers"):
            async with broker_in_loop(tmp_path / "2", **joining):
                pass
        assert broker1.cluster is None


@on_loop
async def test_inter_broker_requests_need_cluster_action(tmp_path: Path) -> None:
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:nobody",
    }
    async with broker_in_loop(tmp_path / "1", **authorizer) as broker1:
        cluster_id = broker1.catalog.identity.cluster_id
        for request, version in (
            (CatalogFetchRequest(broker_id=2), 0),
            (BrokerRegistrationRequest(broker_id=2, cluster_id=cluster_id, rack=None), 4),
            (BrokerHeartbeatRequest(broker_id=2), 1),
            (AlterPartitionRequest(broker_id=2), 3),
            (AllocateProducerIdsRequest(broker_id=2), 0),
            (ForwardRequest(broker_id=2, request_key=19, principal="User:nobody"), 0),
            (EnsureTopicRequest(broker_id=2, name="t"), 0),
        ):
            response: Any = await send_request(broker1, request, version)
            assert response.error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        assert broker1.cluster is None
        with pytest.raises(ConfigError, match="rejects this broker"):
            async with broker_in_loop(
                tmp_path / "2", **{"node.id": 2, "headrace.controller": broker1.listeners[0].address}
            ):
                pass


@pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")
def test_brokers_use_tls_if_their_listener_does(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    options = {
        "ssl.keystore.location": str(tmp_path / "server-both.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
        "security.inter.broker.protocol": "SSL",
    }

    async def run() -> None:
        address = f"127.0.0.1:{free_port()}"
        first = {**options, "listeners": f"SSL://{address}"}
        second = {**options, "node.id": 2, "listeners": "SSL://127.0.0.1:0", "headrace.controller": address}
        async with (
            broker_in_loop(tmp_path / "1", **first) as broker1,
            broker_in_loop(tmp_path / "2", **second) as broker2,
        ):
            broker1.topic_manager.create("t", 1, 2)
            await until("2 knows it", lambda: broker2.catalog.topics.by_name.get("t"))

    asyncio.run(run())


@on_loop
async def test_a_standalone_broker_keeps_its_topics_when_others_join(tmp_path: Path) -> None:
    async with broker_in_loop(tmp_path / "1", **{"node.id": 1}) as broker1:
        alone = broker1.cluster
        assert alone is None
        await made(broker1, create("before", 2, 1))
        async with broker_in_loop(
            tmp_path / "2", **{"node.id": 2, "headrace.controller": broker1.listeners[0].address}
        ) as broker2:
            assert isinstance(broker1.cluster, Controller)
            (topic,) = (await metadata(broker2, "before")).topics
            assert [row.leader_id for row in topic.partitions] == [1, 1]
