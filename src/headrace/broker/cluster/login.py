"""How a broker proves to another one who it is, where the listener that they use wants SASL.

    options → login_of → a mechanism for each connection → log_in: SaslHandshake, SaslAuthenticate … → until when

User and password are those of the broker, named as in Kafka: username="…" password="…" in sasl.jaas.config. All brokers
of a cluster are one user, mostly; that one needs the right of a broker, ClusterAction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.broker.broker_options import for_listener
from headrace.config import Config, Secret, jaas_options
from headrace.errors import ConfigError
from headrace.wire.sasl import (
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Mechanism,
    PlainMechanism,
    ScramMechanism,
    authenticate,
)
from headrace.wire.schema import Message

_OPTION = "sasl.mechanism.inter.broker.protocol"
_SPOKEN = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)

Login = Callable[[str], Mechanism]
"""Makes an authentication for a connection; takes the address, for messages."""
Ask = Callable[[Message, int], Awaitable[Message]]


def login_of(config: Config, listener: str) -> Login:
    """What the options say about a listener of brokers. What is wrong with them is a ConfigError."""
    name = config.of(str, _OPTION)
    if name not in _SPOKEN:
        raise ConfigError(f"{_OPTION} is {name!r}; brokers speak {', '.join(_SPOKEN)} among themselves")
    text = for_listener(config, listener, "sasl.jaas.config", name)
    given = jaas_options(text.reveal()) if isinstance(text, Secret) else {}
    username, password = given.get("username"), given.get("password")
    if not username or not password:
        where = f"listener.name.{listener.lower()}.{name.lower()}.sasl.jaas.config"
        raise ConfigError(
            f"brokers use listener {listener} among themselves, with SASL {name}, which needs the user that they are: "
            f'give {where} username="…" and password="…" after its login module, or name another listener in '
            f"inter.broker.listener.name, or another mechanism in {_OPTION}"
        )

    def login(host: str) -> Mechanism:
        if name == PLAIN:
            return PlainMechanism(host, username, password)
        return ScramMechanism(host, name, username, password)

    return login


async def log_in(ask: Ask, mechanism: Mechanism) -> int:
    """Authenticate on a new connection; returns the lifetime of the session in ms, 0 if it is unlimited."""
    exchange = authenticate(mechanism)
    request, version = next(exchange)
    while True:
        response = await ask(request, version)
        try:
            request, version = exchange.send(response)
        except StopIteration as completed:
            lifetime_ms: int = completed.value
            return lifetime_ms
