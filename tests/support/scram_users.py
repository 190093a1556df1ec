"""SCRAM credentials as clients compute them from a password."""

from __future__ import annotations

import hashlib
import os
from typing import Any

_HASHES = {1: "sha256", 2: "sha512"}


def salted(mechanism: int, password: str, iterations: int = 4096) -> dict[str, Any]:
    """Return the fields of a ScramCredentialUpsertion."""
    salt = os.urandom(16)
    value = hashlib.pbkdf2_hmac(_HASHES[mechanism], password.encode(), salt, iterations)
    return {"iterations": iterations, "salt": salt, "salted_password": value}
