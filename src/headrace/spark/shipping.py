"""Ships readers and writers to Spark's workers, with an error in plain words where headrace is missing.

    driver: Shipped.__reduce__ → (a function by value, the pickled object) → worker: import headrace → the object

Spark pickles a reader or a writer by the name of its class. On a worker without headrace that would fail somewhere in
Spark's worker, with `No module named 'headrace'`, which tells neither the host nor the interpreter. The function that
restores the object is therefore pickled by value: it needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

import headrace
from headrace.spark.errors import CANNOT_IMPORT, OTHER_VERSION


def _restorer() -> Callable[[bytes, str], Any]:
    # Local, because cloudpickle pickles functions of a module by name. It must not use globals of this module;
    # variables of this function are pickled with it.
    cannot_import, other_version = CANNOT_IMPORT, OTHER_VERSION

    def restore(payload: bytes, version: str) -> Any:
        import pickle
        import socket
        import sys

        worker = f"{socket.gethostname()} ({sys.executable}, Python {sys.version.split()[0]})"
        try:
            import headrace
        except ImportError as error:
            raise ImportError(cannot_import.format(worker=worker, problem=error, version=version)) from None
        if headrace.__version__ != version:
            raise ImportError(other_version.format(worker=worker, other=headrace.__version__, version=version))
        cls, state = pickle.loads(payload)
        restored = cls.__new__(cls)
        restored.__dict__.update(state)
        return restored

    return restore


_restore = _restorer()


class Shipped:
    """Mixin of readers and writers. Subclasses may define `__getstate__`; it returns the attributes as a dictionary."""

    def __reduce__(self) -> tuple[Callable[[bytes, str], Any], tuple[bytes, str]]:
        payload: bytes = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return _restore, (payload, headrace.__version__)
