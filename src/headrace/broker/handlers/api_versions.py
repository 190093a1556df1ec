"""ApiVersions and UpdateFeatures: supported API versions and feature levels."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from headrace.broker.context import Context, HandlerResult
from headrace.broker.handlers import SUPPORTED
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.cluster_admin import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.wire.api.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- ApiVersions ---------------------------------------------------------------------------------


_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)

FEATURES = {
    "group.version": (0, 1, 1),  # 1: the consumer protocol of KIP-848
    "metadata.version": (7, 30, 30),  # as in Apache Kafka 4.3
    "share.version": (0, 1, 1),  # 1: share groups (KIP-932)
    "transaction.version": (0, 2, 2),  # 2: each transaction ends with a new epoch (KIP-890)
}
"""Lowest, highest and current level of each feature. A current level of 0 means disabled."""
FEATURES_EPOCH = 1
_ZERO_LEVEL_MIN_VERSION = 4
"""Older clients fail on a lowest level of 0 (KAFKA-17492), so they do not get such features."""


@cache
def api_rows() -> tuple[ApiVersion, ...]:
    return tuple(
        ApiVersion(api_key=key, min_version=row.first, max_version=row.last) for key, row in sorted(SUPPORTED.items())
    )


def handle_api_versions(broker: Broker, context: Context, request: ApiVersionsRequest) -> HandlerResult:
    """Return the supported API versions and features. Allowed before authentication. v3+ client software name."""
    version = context.api_version
    if version >= 3:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=Code.INVALID_REQUEST)
        context.session.software_name, context.session.software_version = names
    supported = [
        SupportedFeatureKey(name=name, min_version=first, max_version=last)
        for name, (first, last, _) in FEATURES.items()
        if first or version >= _ZERO_LEVEL_MIN_VERSION
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


# -- UpdateFeatures ------------------------------------------------------------------------------


def handle_update_features(broker: Broker, context: Context, request: UpdateFeaturesRequest) -> HandlerResult:
    """Change feature levels. They are part of this broker's software: only the current level is accepted."""
    try:
        broker.authorizer.require_on_cluster(context.session, Operation.ALTER)
        if len({update.feature for update in request.feature_updates}) < len(request.feature_updates):
            raise BrokerError("invalid request: duplicate feature", code=Code.INVALID_REQUEST)
    except BrokerError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=str(error.args[0]))
    errors = {update.feature: _check_update(update) for update in request.feature_updates}
    first = next(filter(None, errors.values()), None)
    if first is not None and context.api_version >= 2:  # v2+ has no result per feature
        return UpdateFeaturesResponse(error_code=first.code, error_message=str(first.args[0]))
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(
                feature=name,
                error_code=error.code if error else Code.NONE,
                error_message=str(error.args[0]) if error else None,
            )
            for name, error in errors.items()
        ],
    )


def _check_update(update: FeatureUpdateKey) -> BrokerError | None:
    name, requested = update.feature, update.max_version_level
    if name not in FEATURES:
        return BrokerError(f"unknown feature {name!r}", code=Code.INVALID_UPDATE_VERSION)
    first, last, level = FEATURES[name]
    if requested == level:
        return None
    if not first <= requested <= last:
        return BrokerError(
            f"invalid level {requested} of {name}: expected {first} to {last}", code=Code.INVALID_UPDATE_VERSION
        )
    return BrokerError(f"the level of {name} is fixed at {level} in this broker", code=Code.FEATURE_UPDATE_FAILED)
