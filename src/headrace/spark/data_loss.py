"""Rows that were to be read and are not there any more: an error, or a warning for those who prefer to go on."""

from __future__ import annotations

import logging

from headrace.errors import HeadraceError

log = logging.getLogger("headrace")


class DataLossError(HeadraceError):
    """Rows have gone before they were read, or a topic is not the one it was."""


def report(what: str, *, fail: bool) -> None:
    """`what` names topic, partition and offsets."""
    if fail:
        raise DataLossError(
            f"{what}. Rows may be missing: find out whether that matters; to go on with what is there, set "
            "failOnDataLoss to false"
        )
    log.warning("%s; going on with what is there, for failOnDataLoss is false", what)
