"""Names of TLS cipher suites, as Java's options have them."""

from __future__ import annotations


def openssl_name(name: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, as Java has it → ECDHE-RSA-AES256-GCM-SHA384."""
    if "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    prefix = "" if exchange == "RSA" else f"{exchange}_"
    return f"{prefix}{cipher}".replace("_", "-")
