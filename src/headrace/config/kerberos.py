"""The optional package gssapi, which clients and the broker use for Kerberos."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.errors import ConfigError


def load_gssapi() -> Any:
    """Return the package gssapi, or raise a ConfigError."""
    try:
        return import_module("gssapi")
    except ImportError as error:
        raise ConfigError(
            f"SASL GSSAPI needs the package gssapi ({error}): pip install 'headrace[kerberos]'; pip compiles it with "
            "the headers of Kerberos (Debian: apt-get install libkrb5-dev)"
        ) from error


def error_text(error: Any) -> str:
    """Return the library's text for a GSSError, without its numbers."""
    texts = [*error.get_all_statuses(error.maj_code, True), *error.get_all_statuses(error.min_code, False)]
    return ": ".join(dict.fromkeys(text.strip() for text in texts))
