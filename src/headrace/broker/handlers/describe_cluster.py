"""Key 60: the cluster's id and brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.authorized_operations import authorized_operations
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import CLUSTER_NAME, Resource
from headrace.errors import Code
from headrace.wire.api.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_BROKERS, _CONTROLLERS = 1, 2


def handle(broker: Broker, context: Context, message: DescribeClusterRequest) -> Answer:
    if message.endpoint_type != _BROKERS:
        known = message.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=Code.MISMATCHED_ENDPOINT_TYPE if known else Code.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker: it knows of brokers only",
            endpoint_type=_BROKERS,
        )
    listener = broker.listener(context.session.listener)
    node = DescribeClusterBroker(
        broker_id=broker.node_id,
        host=listener.advertised_host,
        port=listener.advertised_port or listener.port,
        rack=broker.rack,
    )
    answer = DescribeClusterResponse(
        cluster_id=broker.catalog.identity.cluster_id, controller_id=broker.node_id, brokers=[node]
    )
    if message.include_cluster_authorized_operations:
        allowed = authorized_operations(broker.authorizer, context.session, Resource.CLUSTER, CLUSTER_NAME)
        return answer.replace(cluster_authorized_operations=allowed)
    return answer
