"""Picks the kernel: the compiled one if it is there, else the Python reference.

`HEADRACE_KERNEL=python` or `=compiled` forces the choice. Both have the same interface, and the same
tests run on both; `_reference` is the definition, `_kernel` is fast.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.wire import _reference as kernel
else:
    _wanted = os.environ.get("HEADRACE_KERNEL", "")
    if _wanted not in ("", "python", "compiled"):
        raise ConfigError(f"HEADRACE_KERNEL is {_wanted!r}; it may be 'python', 'compiled' or unset")
    try:
        if _wanted == "python":
            raise ImportError("the Python kernel was asked for")
        from headrace.wire import _kernel as kernel
    except ImportError as error:
        if _wanted == "compiled":
            raise ConfigError(f"HEADRACE_KERNEL=compiled, but there is no compiled kernel: {error}") from error
        if not _wanted:
            logging.getLogger("headrace").warning(
                "no compiled kernel (%s): using the Python reference, which is 20 to 100 times slower; "
                "install a C compiler and reinstall headrace",
                error,
            )
        from headrace.wire import _reference as kernel

KERNEL_NAME = "python" if kernel.__name__.endswith("_reference") else "compiled"

__all__ = ["KERNEL_NAME", "kernel"]
