"""Selects the kernel: the compiled one if it is installed, otherwise the Python reference.

`HEADRACE_KERNEL=python` or `=compiled` forces one of them. Both have the same interface, and the same tests run on
both; `_reference` is the definition, `_kernel` is fast.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.wire import _reference as kernel
else:
    _requested = os.environ.get("HEADRACE_KERNEL", "")
    if _requested not in ("", "python", "compiled"):
        raise ConfigError(f"invalid HEADRACE_KERNEL {_requested!r}: expected 'python' or 'compiled', or leave it unset")
    try:
        if _requested == "python":
            raise ImportError("HEADRACE_KERNEL=python")
        from headrace.wire import _kernel as kernel
    except ImportError as error:
        if _requested == "compiled":
            raise ConfigError(
                f"HEADRACE_KERNEL=compiled, but the compiled kernel is not installed: {error}; install a C compiler "
                f"and reinstall headrace"
            ) from error
        if not _requested:
            logging.getLogger("headrace").warning(
                "the compiled kernel is not installed (%s): using the Python reference, which is 20 to 100 times "
                "slower; install a C compiler and reinstall headrace",
                error,
            )
        from headrace.wire import _reference as kernel

KERNEL_NAME = "python" if kernel.__name__.endswith("_reference") else "compiled"

__all__ = ["KERNEL_NAME", "kernel"]
