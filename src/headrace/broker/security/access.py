"""Rights that a request needs: there, or an error with the code of what is protected."""

from __future__ import annotations

from headrace.broker.context import Session
from headrace.broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from headrace.errors import BrokerError, Code

_DENIED = {
    Resource.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def require(authorizer: Authorizer, session: Session, operation: Operation, resource: Resource, name: str) -> None:
    """Raise …_AUTHORIZATION_FAILED unless it is allowed."""
    if not authorizer.allows(session, operation, resource, name):
        raise BrokerError(
            f"{session.principal} has no right to {operation.name} {resource.name.lower()} {name}",
            code=_DENIED[resource],
        )


def require_on_cluster(authorizer: Authorizer, session: Session, operation: Operation) -> None:
    """Raise CLUSTER_AUTHORIZATION_FAILED unless it is allowed."""
    require(authorizer, session, operation, Resource.CLUSTER, CLUSTER_NAME)
