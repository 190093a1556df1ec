"""Key 50: which users have SCRAM credentials. The credentials themselves are never told."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.broker.security.scram import NUMBERS
from headrace.errors import BrokerError, Code
from headrace.wire.api.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: DescribeUserScramCredentialsRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.DESCRIBE)
    except BrokerError as error:
        return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=str(error.args[0]))
    wanted = [user.name for user in message.users or ()] or [*broker.catalog.users.by_name]
    results = [_described(broker, name, times) for name, times in Counter(wanted).items()]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _described(broker: Broker, name: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        text = f"user {name!r} is in the request {times} times"
        return DescribeUserScramCredentialsResult(user=name, error_code=Code.DUPLICATE_RESOURCE, error_message=text)
    credentials = broker.catalog.users.by_name.get(name)
    if credentials is None:
        text = f"user {name!r} has no SCRAM credential"
        return DescribeUserScramCredentialsResult(user=name, error_code=Code.RESOURCE_NOT_FOUND, error_message=text)
    infos = [
        CredentialInfo(mechanism=NUMBERS[mechanism], iterations=credential.iterations)
        for mechanism, credential in sorted(credentials.items())
    ]
    return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=infos)
