"""`with producer.transaction():`, for the producer and for its double."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Self

from headrace.errors import AbortableError


class TransactionScope:
    """For a class to inherit that can begin, commit and abort."""

    def begin_transaction(self) -> None:
        raise NotImplementedError

    def commit_transaction(self) -> None:
        raise NotImplementedError

    def _abort_after_error(self) -> None:
        """Abort if that is still possible. The error that led here is the one to be raised."""
        raise NotImplementedError

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction():` commits at the end and aborts on an exception."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            self._abort_after_error()
            raise
        try:
            self.commit_transaction()
        except AbortableError:
            self._abort_after_error()
            raise
