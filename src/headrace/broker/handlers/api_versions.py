"""Key 18: what we speak, and the features that are switched on. Answered before anything is known of the client."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.handlers import SUPPORTED
from headrace.errors import Code
from headrace.wire.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)

FEATURES = {
    "group.version": (0, 0, 0),  # the consumer protocol of KIP-848 is not offered
    "metadata.version": (7, 30, 30),  # as Apache Kafka 4.3 has it
    "transaction.version": (0, 2, 2),  # 2: transactions that end with a new epoch each (KIP-890)
}
"""Lowest and highest level that could be, and the one that is. A level of 0 means: not switched on."""
FEATURES_EPOCH = 1
_ZERO_LEVELS_SINCE = 4
"""Older clients trip over a lowest level of 0 (KAFKA-17492): such features are left out for them."""


@cache
def api_rows() -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(api_key=key, min_version=row.first, max_version=row.last) for key, row in sorted(SUPPORTED.items())
    )


def handle(broker: Broker, context: Context, message: ApiVersionsRequest) -> Answer:
    version = context.api_version
    if version >= 3:
        names = (message.client_software_name, message.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=Code.INVALID_REQUEST)
        context.session.client_software = " ".join(names)
    supported = [
        SupportedFeatureKey(name=name, min_version=first, max_version=last)
        for name, (first, last, _) in FEATURES.items()
        if first or version >= _ZERO_LEVELS_SINCE
    ]
    finalized = [
        FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, (_, _, level) in FEATURES.items()
        if level
    ]
    return ApiVersionsResponse(
        api_keys=api_rows(),
        supported_features=supported,
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=finalized,
    )
