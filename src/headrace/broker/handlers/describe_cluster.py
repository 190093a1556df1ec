"""Key 60: the cluster's id and brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.authorized_operations import authorized_operations
from headrace.broker.context import Answer, Context
from headrace.broker.nodes import controller_id, nodes
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
    found = nodes(broker, context.session.listener, with_fenced=message.include_fenced_brokers)
    answer = DescribeClusterResponse(
        cluster_id=broker.catalog.identity.cluster_id,
        controller_id=controller_id(broker),
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack, is_fenced=node.is_fenced
            )
            for node in found
        ],
    )
    if message.include_cluster_authorized_operations:
        allowed = authorized_operations(broker.authorizer, context.session, Resource.CLUSTER, CLUSTER_NAME)
        return answer.replace(cluster_authorized_operations=allowed)
    return answer
