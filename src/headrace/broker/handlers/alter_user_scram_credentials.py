"""Key 51: give users SCRAM credentials, or take them away. Passwords come salted, and are kept as keys made of that."""

from __future__ import annotations

from collections import Counter
from hashlib import new
from typing import TYPE_CHECKING

from headrace.broker.catalog import Event
from headrace.broker.catalog.users import Users
from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.broker.security.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, NUMBERS, from_salted
from headrace.errors import BrokerError, Code
from headrace.wire.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_Change = ScramCredentialDeletion | ScramCredentialUpsertion
_MECHANISMS = {number: name for name, number in NUMBERS.items()}


def handle(broker: Broker, context: Context, message: AlterUserScramCredentialsRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.ALTER)
    except BrokerError as error:
        return failure(context, message, error.code)
    changes: list[_Change] = [*message.deletions, *message.upsertions]
    times = Counter(change.name for change in changes)
    events, results = [], []
    for change in {change.name: change for change in changes}.values():
        try:
            if times[change.name] > 1:
                raise BrokerError(f"user {change.name!r} is in the request twice", code=Code.DUPLICATE_RESOURCE)
            events.append(_event(broker, change))
        except BrokerError as error:
            results.append(_answer(change.name, error.code, str(error.args[0])))
        else:
            results.append(_answer(change.name, Code.NONE))
    if events:
        broker.catalog.record(*events)
    return AlterUserScramCredentialsResponse(results=results)


def _event(broker: Broker, change: _Change) -> Event:
    if not change.name:
        raise BrokerError("a user needs a name", code=Code.UNACCEPTABLE_CREDENTIAL)
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise BrokerError(
            f"there is no SCRAM mechanism {change.mechanism}; there are {', '.join(NUMBERS)}",
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
            f"{change.iterations} iterations; it must be {ITERATIONS_MIN} to {ITERATIONS_MAX}",
            code=Code.UNACCEPTABLE_CREDENTIAL,
        )
    salted, salt = bytes(change.salted_password), bytes(change.salt)
    if not salt or len(salted) != new(HASHES[mechanism]).digest_size:
        raise BrokerError(
            f"a salt, and {new(HASHES[mechanism]).digest_size} bytes of salted password are needed for {mechanism}",
            code=Code.UNACCEPTABLE_CREDENTIAL,
        )
    return Users.change(change.name, mechanism, from_salted(mechanism, salted, salt, change.iterations))


def _answer(user: str, code: int, text: str | None = None) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(user=user, error_code=code, error_message=text)


def failure(
    context: Context, message: AlterUserScramCredentialsRequest, code: int
) -> AlterUserScramCredentialsResponse:
    changes: list[_Change] = [*message.deletions, *message.upsertions]
    names = dict.fromkeys(change.name for change in changes)
    return AlterUserScramCredentialsResponse(results=[_answer(name, code) for name in names])
