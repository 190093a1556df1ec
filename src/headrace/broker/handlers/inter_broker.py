"""Requests between the brokers of a cluster. They are not advertised to clients."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING

from headrace.broker.cluster.catalog_replication import fetch_now
from headrace.broker.cluster.controller import Controller, controller_for
from headrace.broker.cluster.forwarding import FORWARDED
from headrace.broker.cluster.role import IsrChange
from headrace.broker.context import Context, HandlerResult, Session
from headrace.broker.error_responses import error_response
from headrace.broker.handlers import supported
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code, ConfigError
from headrace.wire.api import request_class
from headrace.wire.api.inter_broker import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    CatalogFetchRequest,
    CatalogFetchResponse,
    EnsureTopicRequest,
    EnsureTopicResponse,
    ForwardRequest,
    ForwardResponse,
    PartitionData,
    PartitionResult,
    TopicResult,
)
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- AlterPartition (key 56) ---------------------------------------------------------------------


def handle_alter_partition(broker: Broker, context: Context, request: AlterPartitionRequest) -> HandlerResult:
    """Change the in-sync replicas of partitions, as their leader requests."""
    controller = controller_for(broker, context)
    topics = []
    for topic in request.topics:
        rows = [_alter_partition(controller, request, topic.topic_id, row) for row in topic.partitions]
        topics.append(TopicResult(topic_id=topic.topic_id, partitions=rows))
    return AlterPartitionResponse(topics=topics)


def _alter_partition(
    controller: Controller, request: AlterPartitionRequest, topic_id: bytes, row: PartitionData
) -> PartitionResult:
    isr = {state.broker_id: state.broker_epoch for state in row.new_isr_with_epochs}
    try:
        change = IsrChange(topic_id, row.partition_index, row.leader_epoch, row.partition_epoch, isr)
        partition = controller.alter_isr(request.broker_id, request.broker_epoch, change)
    except BrokerError as error:
        return PartitionResult(partition_index=row.partition_index, error_code=error.code)
    return PartitionResult(
        partition_index=row.partition_index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        partition_epoch=partition.partition_epoch,
    )


# -- BrokerRegistration (key 62) -----------------------------------------------------------------


log = logging.getLogger("headrace.broker")


def handle_broker_registration(broker: Broker, context: Context, request: BrokerRegistrationRequest) -> HandlerResult:
    """Register a broker. The first registration turns a standalone broker into the controller of a cluster."""
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)
    if request.cluster_id != broker.catalog.identity.cluster_id:
        raise BrokerError(
            f"cluster id {request.cluster_id} differs from {broker.catalog.identity.cluster_id}",
            code=Code.INCONSISTENT_CLUSTER_ID,
        )
    if broker.cluster is None:
        if request.broker_id == broker.node_id:
            raise BrokerError(
                f"node.id {request.broker_id} is already used by this broker", code=Code.DUPLICATE_BROKER_REGISTRATION
            )
        _become_controller(broker, request.broker_id)
    controller = controller_for(broker, context)
    return BrokerRegistrationResponse(broker_epoch=controller.register(request, context.session))


def _become_controller(broker: Broker, node_id: int) -> None:
    try:
        broker.start_cluster()
    except ConfigError as error:  # options that a standalone broker does not need
        log.error("broker %d cannot join: %s", node_id, error)
        raise BrokerError(str(error), code=Code.INVALID_REGISTRATION) from error


# -- BrokerHeartbeat (key 63) --------------------------------------------------------------------


def handle_broker_heartbeat(broker: Broker, context: Context, request: BrokerHeartbeatRequest) -> HandlerResult:
    """Keep the session of a broker alive, or request a controlled shutdown."""
    return controller_for(broker, context).heartbeat(request, context.session)


# -- AllocateProducerIds (key 67) ----------------------------------------------------------------


def handle_allocate_producer_ids(
    broker: Broker, context: Context, request: AllocateProducerIdsRequest
) -> HandlerResult:
    """Reserve a block of producer ids for another broker."""
    first, end = controller_for(broker, context).reserve_producer_ids()
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=end - first)


# -- CatalogFetch (key 30000, headrace only) -----------------------------------------------------


def handle_catalog_fetch(broker: Broker, context: Context, request: CatalogFetchRequest) -> HandlerResult:
    """Return the latest changes of the metadata; a standalone broker responds too, so that another one can join it.

    A broker that is not the controller returns the address of the controller.
    """
    if broker.cluster is None or not broker.cluster.is_controller:
        broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)
    if broker.cluster is None:
        return fetch_now(broker.catalog, request)
    if not broker.cluster.is_controller:
        return CatalogFetchResponse(
            error_code=Code.NOT_CONTROLLER,
            error_message=f"broker {broker.node_id} is not the controller",
            controller=broker.cluster.controller_address,
        )
    return controller_for(broker, context).feed.fetch(request)


# -- Forward (key 30001, headrace only) ----------------------------------------------------------


def handle_forward(broker: Broker, context: Context, forwarded: ForwardRequest) -> HandlerResult:
    """Handle a client request that another broker has forwarded."""
    controller_for(broker, context)
    versions = supported(forwarded.request_key)
    if (
        forwarded.request_key not in FORWARDED
        or versions is None
        or forwarded.request_version not in range(versions.first, versions.last + 1)
    ):
        raise BrokerError(
            f"requests with API key {forwarded.request_key} v{forwarded.request_version} cannot be forwarded",
            code=Code.INVALID_REQUEST,
        )
    return _handle_and_encode(broker, context, forwarded)


async def _handle_and_encode(broker: Broker, context: Context, forwarded: ForwardRequest) -> ForwardResponse:
    session = Session(forwarded.host, forwarded.listener, forwarded.principal)
    inner = Context(
        session, forwarded.request_key, forwarded.request_version, forwarded.client_id, context.correlation_id
    )
    request = request_class(forwarded.request_key).decode(forwarded.request_version, forwarded.body)
    response = await _respond(broker, inner, request)
    recent = broker.catalog.recent
    return ForwardResponse(
        generation=recent.generation,
        next_number=recent.next_number,
        body=response.encode(forwarded.request_version),
    )


async def _respond(broker: Broker, context: Context, request: Message) -> Message:
    try:
        result = broker.handler(context.api_key)(broker, context, request)
        response = await result if inspect.isawaitable(result) else result
    except BrokerError as error:
        return await error_response(context, request, error.code, _never, str(error.args[0]))
    assert response is not None, "forwarded requests have a response"
    return response


async def _never() -> Message | None:
    raise AssertionError("only Metadata calls the handler again, and it is not forwarded")


# -- EnsureTopic (key 30002, headrace only) ------------------------------------------------------


def handle_ensure_topic(broker: Broker, context: Context, request: EnsureTopicRequest) -> HandlerResult:
    """Create a topic for another broker whose client is authorized to auto-create it."""
    controller_for(broker, context).ensure_topic(request.name)
    recent = broker.catalog.recent
    return EnsureTopicResponse(generation=recent.generation, next_number=recent.next_number)
