"""Users and passwords in options: Java's way, `<login module> required name="value" …;`, and a shorter one."""

from __future__ import annotations

import json
import re

from headrace.config import Secret
from headrace.errors import ConfigError

_ENTRY = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.DOTALL | re.I)
_OPTION = re.compile(r'\s+([^\s="]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.DOTALL)
_USER = "user_"


def jaas_options(text: str) -> dict[str, str]:
    """The options of one entry. The module is not looked at."""
    entry = _ENTRY.fullmatch(text)
    rest = entry[1] if entry else text
    options: dict[str, str] = {}
    while entry is None or rest.strip():
        option = _OPTION.match(rest) if entry else None
        if option is None:
            # The text is full of secrets: no part of it goes into the message.
            raise ConfigError('sasl.jaas.config: expected `<login module> required name="value" …;`')
        name, quoted, bare = option.groups()
        options[name] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        rest = rest[option.end() :]
    return options


def users_of(text: str) -> dict[str, Secret]:
    """The users whom an entry lets in: `user_alice="secret"`."""
    return {
        name.removeprefix(_USER): Secret(value) for name, value in jaas_options(text).items() if name.startswith(_USER)
    }


def users_in_short(text: str) -> dict[str, Secret]:
    """sasl.plain.users: `alice:secret,bob:other`, or a JSON object."""
    if text.startswith("{"):
        try:
            pairs = [*json.loads(text).items()]
        except ValueError:
            raise _refusal() from None
    else:
        parts = (part.strip().partition(":") for part in text.split(","))
        pairs = [(user, password) for user, _, password in parts]
    if not all(isinstance(word, str) and word for pair in pairs for word in pair):
        raise _refusal()
    return {user: Secret(password) for user, password in pairs}


def _refusal() -> ConfigError:
    return ConfigError("sasl.plain.users: each must be user:password, with commas between them; or a JSON object")
