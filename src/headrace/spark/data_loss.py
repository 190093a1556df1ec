"""Rows that were to be read and are not there any more: an error, or a warning for those who prefer to go on."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from headrace.errors import HeadraceError
from headrace.spark.planning import Recreated

log = logging.getLogger("headrace")


class DataLossError(HeadraceError):
    """Rows have gone before they were read, or a topic is not the one it was."""


def report(what: str, *, fail: bool, instead: str = "go on with what is there") -> None:
    """Fail, or warn and do something else `instead`. `what` names topic, partition and offsets."""
    if fail:
        raise DataLossError(
            f"{what}. Rows may be missing: find out whether that matters; to {instead}, set failOnDataLoss to false"
        )
    log.warning("%s; failOnDataLoss is false, so the query will %s", what, instead)


def report_recreated(topics: Iterable[Recreated], *, fail: bool) -> None:
    """Fail, or warn that the new topic is read from its beginning."""
    for topic in topics:
        what = f"{topic}. The offsets of the checkpoint belong to the topic that was deleted"
        report(what, fail=fail, instead="read the new topic from its earliest offset")
