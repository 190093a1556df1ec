"""Key 57: switch features on or off. Their levels are part of the software: only what is so already is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.handlers.api_versions import FEATURES
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: UpdateFeaturesRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.ALTER)
        if len({update.feature for update in message.feature_updates}) < len(message.feature_updates):
            raise BrokerError("a feature is in the request twice", code=Code.INVALID_REQUEST)
    except BrokerError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=str(error.args[0]))
    problems = {update.feature: _problem(update) for update in message.feature_updates}
    first = next(filter(None, problems.values()), None)
    if first is not None and context.api_version >= 2:  # there is no place for more than one any more
        return UpdateFeaturesResponse(error_code=first.code, error_message=str(first.args[0]))
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(
                feature=name,
                error_code=problem.code if problem else Code.NONE,
                error_message=str(problem.args[0]) if problem else None,
            )
            for name, problem in problems.items()
        ],
    )


def _problem(update: FeatureUpdateKey) -> BrokerError | None:
    name, wanted = update.feature, update.max_version_level
    if name not in FEATURES:
        return BrokerError(f"there is no feature {name!r}", code=Code.INVALID_UPDATE_VERSION)
    first, last, level = FEATURES[name]
    if wanted == level:
        return None
    if not first <= wanted <= last:
        return BrokerError(f"{name} can be {first} to {last}, not {wanted}", code=Code.INVALID_UPDATE_VERSION)
    return BrokerError(
        f"{name} is {level} and stays so: its level is part of this broker", code=Code.FEATURE_UPDATE_FAILED
    )
