"""How a broker proves to another one who it is, where the listener that they use wants SASL.

    options → login_of → a mechanism for each connection → log_in: SaslHandshake, SaslAuthenticate … → until when

User and password are those of the broker, named as in Kafka: username="…" password="…" in sasl.jaas.config. All brokers
of a cluster are one user, mostly; that one needs the right of a broker, ClusterAction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.broker.broker_options import for_listener
from headrace.broker.security.mechanisms import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, jaas_options
from headrace.config import Config, Secret
from headrace.errors import AuthenticationError, ConfigError
from headrace.wire.api.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from headrace.wire.sasl import Mechanism, PlainMechanism, ScramMechanism
from headrace.wire.schema import Message

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 2
STEPS_MAX = 4
"""No mechanism of ours takes more messages than that."""

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
    """Authenticate on a new connection. How long that counts, in milliseconds; 0: for ever."""
    chosen = await ask(SaslHandshakeRequest(mechanism=mechanism.name), HANDSHAKE_VERSION)
    assert isinstance(chosen, SaslHandshakeResponse)
    if chosen.error_code:
        raise mechanism.not_offered(chosen.mechanisms)
    token: bytes | None = mechanism.first()
    for _ in range(STEPS_MAX):
        if token is None:
            break
        answer = await ask(SaslAuthenticateRequest(auth_bytes=token), AUTHENTICATE_VERSION)
        assert isinstance(answer, SaslAuthenticateResponse)
        if answer.error_code:
            raise mechanism.failure(answer.error_message or "it says no more")
        token = mechanism.step(answer.auth_bytes)
        lifetime_ms = answer.session_lifetime_ms
    if token is not None:
        raise AuthenticationError(f"{mechanism.host} asks for more and more with SASL {mechanism.name}")
    return lifetime_ms
