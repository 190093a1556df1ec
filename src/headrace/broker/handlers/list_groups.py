"""Key 16: all groups of this broker. v4 only those in some states · v5 only some types: here all are "classic"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError
from headrace.wire.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

TYPE = "classic"


def handle(broker: Broker, context: Context, message: ListGroupsRequest) -> Answer:
    allows, session = broker.authorizer.allows, context.session
    states = {state.strip().lower() for state in message.states_filter}
    types = {type_.strip().lower() for type_ in message.types_filter}
    if types and TYPE not in types:
        return ListGroupsResponse()
    try:
        groups = broker.groups.list()
    except BrokerError as error:
        return ListGroupsResponse(error_code=error.code)
    sees_all = allows(session, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=TYPE,
            )
            for group in groups
            if (not states or group.state.value.lower() in states)
            and (sees_all or allows(session, Operation.DESCRIBE, Resource.GROUP, group.id))
        ]
    )
