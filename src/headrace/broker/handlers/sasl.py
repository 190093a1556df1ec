"""SaslHandshake, SaslAuthenticate and the administration of SCRAM credentials."""

from __future__ import annotations

from collections import Counter
from hashlib import new
from typing import TYPE_CHECKING

from headrace.broker.catalog import Event
from headrace.broker.catalog.security import Users
from headrace.broker.context import Context, HandlerResult
from headrace.broker.security.authorizer import Operation
from headrace.broker.security.sasl import sasl_of
from headrace.broker.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, from_salted
from headrace.errors import BrokerError, Code
from headrace.wire.api.access import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.wire.api.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from headrace.wire.sasl import HASHES, SCRAM_NUMBERS

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- SaslHandshake -------------------------------------------------------------------------------


async def handle_sasl_handshake(
    broker: Broker, context: Context, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Select a SASL mechanism. After v0 the client continues with bare tokens instead of SaslAuthenticate."""
    sasl = sasl_of(context.session)
    if sasl is None:
        return SaslHandshakeResponse(error_code=Code.ILLEGAL_SASL_STATE)
    try:
        await sasl.choose(request.mechanism, bare_tokens=context.api_version == 0)
    except BrokerError as error:
        mechanisms = () if error.code == Code.ILLEGAL_SASL_STATE else sasl.mechanisms
        return SaslHandshakeResponse(error_code=error.code, mechanisms=mechanisms)
    return SaslHandshakeResponse(mechanisms=sasl.mechanisms)


# -- SaslAuthenticate ----------------------------------------------------------------------------


async def handle_sasl_authenticate(
    broker: Broker, context: Context, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Exchange a token of the selected mechanism."""
    sasl = sasl_of(context.session)
    if sasl is None:
        return SaslAuthenticateResponse(
            error_code=Code.ILLEGAL_SASL_STATE, error_message="SASL is not enabled on this listener"
        )
    try:
        token, lifetime_ms = await sasl.token(bytes(request.auth_bytes))
    except BrokerError as error:
        return SaslAuthenticateResponse(error_code=error.code, error_message=str(error.args[0]))
    return SaslAuthenticateResponse(error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms)


# -- DescribeUserScramCredentials ----------------------------------------------------------------


def handle_describe_user_scram_credentials(
    broker: Broker, context: Context, request: DescribeUserScramCredentialsRequest
) -> HandlerResult:
    """Return which users have SCRAM credentials; never the credentials themselves."""
    broker.authorizer.require_on_cluster(context.session, Operation.DESCRIBE)
    requested = [user.name for user in request.users or ()] or [*broker.catalog.users.by_name]
    results = [_describe_user(broker, name, occurrences) for name, occurrences in Counter(requested).items()]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _describe_user(broker: Broker, name: str, occurrences: int) -> DescribeUserScramCredentialsResult:
    if occurrences > 1:
        message = f"user {name!r} occurs {occurrences} times in the request"
        return DescribeUserScramCredentialsResult(user=name, error_code=Code.DUPLICATE_RESOURCE, error_message=message)
    credentials = broker.catalog.users.by_name.get(name)
    if credentials is None:
        message = f"user {name!r} has no SCRAM credential"
        return DescribeUserScramCredentialsResult(user=name, error_code=Code.RESOURCE_NOT_FOUND, error_message=message)
    infos = [
        CredentialInfo(mechanism=SCRAM_NUMBERS[mechanism], iterations=credential.iterations)
        for mechanism, credential in sorted(credentials.items())
    ]
    return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=infos)


# -- AlterUserScramCredentials -------------------------------------------------------------------


_Change = ScramCredentialDeletion | ScramCredentialUpsertion
_MECHANISMS = {number: name for name, number in SCRAM_NUMBERS.items()}


def handle_alter_user_scram_credentials(
    broker: Broker, context: Context, request: AlterUserScramCredentialsRequest
) -> HandlerResult:
    """Create, replace or delete SCRAM credentials. The broker stores keys derived from the salted passwords."""
    try:
        broker.authorizer.require_on_cluster(context.session, Operation.ALTER)
    except BrokerError as error:
        return fail_alter_user_scram_credentials(context, request, error.code)
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    occurrences = Counter(change.name for change in changes)
    events, results = [], []
    for change in {change.name: change for change in changes}.values():
        try:
            if occurrences[change.name] > 1:
                raise BrokerError(f"duplicate user {change.name!r}", code=Code.DUPLICATE_RESOURCE)
            events.append(_event(broker, change))
        except BrokerError as error:
            results.append(_altered_user(change.name, error.code, str(error.args[0])))
        else:
            results.append(_altered_user(change.name, Code.NONE))
    if events:
        broker.catalog.record(*events)
    return AlterUserScramCredentialsResponse(results=results)


def _event(broker: Broker, change: _Change) -> Event:
    if not change.name:
        raise BrokerError("the user name is empty", code=Code.UNACCEPTABLE_CREDENTIAL)
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise BrokerError(
            f"invalid SCRAM mechanism {change.mechanism}: expected one of {', '.join(SCRAM_NUMBERS)}",
            code=Code.UNSUPPORTED_SASL_MECHANISM,
        )
    if isinstance(change, ScramCredentialUpsertion):
        return _upsertion(change, mechanism)
    if broker.catalog.users.credential(change.name, mechanism) is None:
        raise BrokerError(f"user {change.name!r} has no credential for {mechanism}", code=Code.RESOURCE_NOT_FOUND)
    return Users.deletion(change.name, mechanism)


def _upsertion(change: ScramCredentialUpsertion, mechanism: str) -> Event:
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        raise BrokerError(
            f"invalid iterations {change.iterations}: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}",
            code=Code.UNACCEPTABLE_CREDENTIAL,
        )
    salted, salt = bytes(change.salted_password), bytes(change.salt)
    if not salt or len(salted) != new(HASHES[mechanism]).digest_size:
        raise BrokerError(
            f"invalid credential: {mechanism} needs a salt and a salted password of "
            f"{new(HASHES[mechanism]).digest_size} bytes",
            code=Code.UNACCEPTABLE_CREDENTIAL,
        )
    return Users.change(change.name, mechanism, from_salted(mechanism, salted, salt, change.iterations))


def _altered_user(user: str, code: int, text: str | None = None) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=user, error_code=code, error_message=text)


def fail_alter_user_scram_credentials(
    context: Context, request: AlterUserScramCredentialsRequest, code: int
) -> AlterUserScramCredentialsResponse:
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    names = dict.fromkeys(change.name for change in changes)
    return AlterUserScramCredentialsResponse(results=[_altered_user(name, code) for name in names])
