"""Declared options: one declaration gives parsing, validation, docs and `config show`.

option.py        Option, its checks, Secret
resolved.py      Options → Config
properties.py    `.properties` files, JAAS entries
tls_options.py   the `ssl.*` options of clients
registry_options.py  the `schema.registry.*` options of clients
serde_options.py the options of keys and values with schemas
openssl.py       `ssl.*` options for OpenSSL
backoff.py, clock.py, sampling.py: small parts that clients and broker share
option_types.py  the options as TypedDicts, for type checkers (generated)
"""

from headrace.config.option import INT_MAX, LONG_MAX, Between, Check, Importance, Kind, NotEmpty, OneOf, Option, Secret
from headrace.config.properties import jaas_options, parse_properties, read_properties
from headrace.config.resolved import Config, Layer, Log, Options, Origin

__all__ = [
    "INT_MAX",
    "LONG_MAX",
    "Between",
    "Check",
    "Config",
    "Importance",
    "Kind",
    "Layer",
    "Log",
    "NotEmpty",
    "OneOf",
    "Option",
    "Options",
    "Origin",
    "Secret",
    "jaas_options",
    "parse_properties",
    "read_properties",
]
