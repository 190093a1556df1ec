"""Which operations a client may do on something, as the bits of an answer's `authorized_operations` (KIP-430)."""

from __future__ import annotations

from headrace.broker.context import Session
from headrace.broker.security.authorizer import Authorizer, Operation, Resource

_OPERATIONS = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""What can be done to each kind of resource at all."""


def authorized_operations(authorizer: Authorizer, session: Session, resource: Resource, name: str) -> int:
    """A bit for each operation that is allowed, at the place of its number."""
    bits = 0
    for operation in _OPERATIONS[resource]:
        if authorizer.allows(session, operation, resource, name):
            bits |= 1 << operation
    return bits
