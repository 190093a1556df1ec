"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken.

There are no delegation tokens. The responses are those of an Apache Kafka without `delegation.token.secret.key`:
clients that request tokens get an error, instead of a closed connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import ANONYMOUS, Context, HandlerResult
from headrace.errors import Code
from headrace.wire.api.access import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


REQUESTER_MIN_VERSION = 3


def handle_create_delegation_token(
    broker: Broker, context: Context, request: CreateDelegationTokenRequest
) -> HandlerResult:
    """Refuse to create a token. v3+ names the client as well as the owner."""
    kind, _, name = context.session.principal.partition(":")
    response = CreateDelegationTokenResponse(
        error_code=_refusal(broker, context),
        principal_type=kind,
        principal_name=name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )
    if context.api_version < REQUESTER_MIN_VERSION:
        return response
    return response.replace(token_requester_principal_type=kind, token_requester_principal_name=name)


def handle_renew_delegation_token(
    broker: Broker, context: Context, request: RenewDelegationTokenRequest
) -> HandlerResult:
    """Refuse to renew a token."""
    return RenewDelegationTokenResponse(error_code=_refusal(broker, context), expiry_timestamp_ms=-1)


def handle_expire_delegation_token(
    broker: Broker, context: Context, request: ExpireDelegationTokenRequest
) -> HandlerResult:
    """Refuse to expire a token."""
    return ExpireDelegationTokenResponse(error_code=_refusal(broker, context), expiry_timestamp_ms=-1)


def handle_describe_delegation_token(
    broker: Broker, context: Context, request: DescribeDelegationTokenRequest
) -> HandlerResult:
    """Refuse to describe tokens."""
    return DescribeDelegationTokenResponse(error_code=_refusal(broker, context))


def _refusal(broker: Broker, context: Context) -> Code:
    """Return the error: tokens are for authenticated clients only, and disabled for these."""
    protocol = broker.listener(context.session.listener).security_protocol
    if protocol == "PLAINTEXT" or (protocol == "SSL" and context.session.principal == ANONYMOUS):
        return Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return Code.DELEGATION_TOKEN_AUTH_DISABLED
