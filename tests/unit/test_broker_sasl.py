"""SASL authentication of a connection, on a manual clock."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.broker.context import ANONYMOUS
from headrace.broker.security.sasl import REAUTHENTICATION_INTERVAL_MIN_MS, SaslAuthentication, SaslSession, sasl_of
from headrace.errors import AuthenticationError, BrokerError, Code
from tests.support.fake_internal import HandClock

PRODUCE, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 0, 17, 18, 36
DELAY_MS = 100
FRAME_BYTES_MAX = 512


class Password:
    """A mechanism with two steps: user name, then password."""

    def __init__(self, expires_ms: int | None = None) -> None:
        self.user: str | None = None
        self.expires_ms = expires_ms
        self._name = ""

    async def step(self, token: bytes) -> bytes:
        if not self._name:
            self._name = token.decode()
            return b"the word?"
        if token != b"open":
            raise AuthenticationError("not the word")
        self.user = self._name
        return b"welcome"


class Rig:
    def __init__(self, *, reauthenticate_after_ms: int = 0, expires_ms: int | None = None) -> None:
        self.clock = HandClock()
        self.session = SaslSession("10.0.0.1", "SASL_PLAINTEXT")
        self.sasl = self.session.sasl = SaslAuthentication(
            self.session,
            {"WORD": lambda: Password(expires_ms), "OTHER": Password},
            self.clock,
            reauthenticate_after_ms={"WORD": reauthenticate_after_ms, "OTHER": 0},
            failure_delay_ms=DELAY_MS,
            frame_bytes_max=FRAME_BYTES_MAX,
        )

    @property
    def states(self) -> tuple[bool, bool]:
        """Return whether the next frame is a bare token, and whether the authentication has failed."""
        return self.sasl.expects_token, self.sasl.failed

    def admitted(self) -> set[int]:
        return {key for key in (PRODUCE, HANDSHAKE, API_VERSIONS, AUTHENTICATE) if self.sasl.admits(key)}

    async def enter(self, name=b"ann", mechanism="WORD") -> int:
        await self.sasl.choose(mechanism, bare_tokens=False)
        assert await self.sasl.token(name) == (b"the word?", 0)
        response, lifetime_ms = await self.sasl.token(b"open")
        assert response == b"welcome"
        return lifetime_ms

    async def refused(self, attempt, code, *, after_ms: int = DELAY_MS) -> str:
        """Return the delayed error of an attempt."""
        task = asyncio.ensure_future(attempt)
        await self.clock.run(after_ms - 1 if after_ms else 0)
        assert task.done() == (not after_ms)
        await self.clock.run(1)
        with pytest.raises(BrokerError) as caught:
            await task
        assert caught.value.code == code
        return str(caught.value.args[0])


def test_only_authentication_requests_are_admitted_before_login() -> None:
    async def scenario() -> None:
        rig = Rig()
        assert sasl_of(rig.session) is rig.sasl
        assert rig.admitted() == {HANDSHAKE, API_VERSIONS, AUTHENTICATE}
        assert rig.sasl.frame_bytes_max == FRAME_BYTES_MAX
        await rig.sasl.choose("WORD", bare_tokens=False)
        assert rig.admitted() == {HANDSHAKE, AUTHENTICATE}
        await rig.sasl.token(b"ann")
        await rig.sasl.token(b"open")
        assert rig.session.principal == "User:ann"
        assert not rig.sasl.frame_bytes_max
        assert rig.admitted() == {PRODUCE, HANDSHAKE, API_VERSIONS, AUTHENTICATE}
        assert not rig.sasl.failed

    asyncio.run(scenario())


def test_a_failed_authentication_is_delayed_and_final(caplog) -> None:
    async def scenario() -> None:
        rig = Rig()
        await rig.sasl.choose("WORD", bare_tokens=False)
        await rig.sasl.token(b"ann")
        message = await rig.refused(rig.sasl.token(b"shut"), Code.SASL_AUTHENTICATION_FAILED)
        assert message == "not the word"
        assert rig.sasl.failed
        assert rig.admitted() == set()
        assert rig.session.principal == ANONYMOUS

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert "10.0.0.1" in caplog.text
    assert "shut" not in caplog.text


def test_requests_out_of_turn_fail_with_illegal_sasl_state() -> None:
    async def scenario() -> None:
        rig = Rig()
        await rig.refused(rig.sasl.token(b"ann"), Code.ILLEGAL_SASL_STATE)
        assert rig.sasl.failed

        rig = Rig()
        await rig.sasl.choose("WORD", bare_tokens=False)
        await rig.refused(rig.sasl.choose("WORD", bare_tokens=False), Code.ILLEGAL_SASL_STATE)
        assert rig.sasl.failed

        rig = Rig()
        await rig.enter()  # a session without a lifetime cannot re-authenticate, but continues
        await rig.refused(rig.sasl.choose("WORD", bare_tokens=False), Code.ILLEGAL_SASL_STATE, after_ms=0)
        await rig.refused(rig.sasl.token(b"open"), Code.ILLEGAL_SASL_STATE, after_ms=0)
        assert not rig.sasl.failed
        assert PRODUCE in rig.admitted()

    asyncio.run(scenario())


def test_an_unknown_mechanism_returns_the_enabled_ones() -> None:
    async def scenario() -> None:
        rig = Rig()
        message = await rig.refused(rig.sasl.choose("GSSAPI", bare_tokens=False), Code.UNSUPPORTED_SASL_MECHANISM)
        assert "WORD, OTHER" in message
        assert rig.sasl.mechanisms == ("WORD", "OTHER")
        assert rig.sasl.failed

    asyncio.run(scenario())


def test_bare_tokens_after_the_oldest_handshake() -> None:
    async def scenario() -> None:
        rig = Rig()
        await rig.sasl.choose("WORD", bare_tokens=True)
        assert rig.states == (True, False)
        assert await rig.sasl.bare_token(b"ann") == b"the word?"
        assert rig.states == (True, False)
        assert await rig.sasl.bare_token(b"open") == b"welcome"
        assert rig.states == (False, False)
        assert PRODUCE in rig.admitted()

    asyncio.run(scenario())


def test_a_session_with_a_lifetime_must_reauthenticate_in_time() -> None:
    async def scenario() -> None:
        rig = Rig(reauthenticate_after_ms=5_000)
        assert await rig.enter() == 5_000
        rig.clock.now_ms += 4_000
        assert await rig.enter() == 5_000  # and the principal stays
        rig.clock.now_ms += 5_000
        assert PRODUCE in rig.admitted()
        rig.clock.now_ms += 1
        assert rig.admitted() == {HANDSHAKE}
        assert await rig.enter() == 5_000  # late, but accepted
        assert PRODUCE in rig.admitted()

    asyncio.run(scenario())


def test_reauthenticating_too_often_fails_and_keeps_the_session() -> None:
    async def scenario() -> None:
        rig = Rig(reauthenticate_after_ms=5_000)
        await rig.enter()
        await rig.enter()
        await rig.refused(rig.sasl.choose("WORD", bare_tokens=False), Code.ILLEGAL_SASL_STATE, after_ms=0)
        assert PRODUCE in rig.admitted()
        rig.clock.now_ms += REAUTHENTICATION_INTERVAL_MIN_MS
        await rig.enter()

    asyncio.run(scenario())


def test_reauthentication_must_use_the_same_user_and_mechanism() -> None:
    async def scenario() -> None:
        rig = Rig(reauthenticate_after_ms=5_000)
        await rig.enter()
        await rig.sasl.choose("WORD", bare_tokens=False)
        await rig.sasl.token(b"bob")
        await rig.refused(rig.sasl.token(b"open"), Code.SASL_AUTHENTICATION_FAILED)
        assert rig.session.principal == "User:ann"
        assert rig.sasl.failed

        rig = Rig(reauthenticate_after_ms=5_000)
        await rig.enter()
        await rig.sasl.choose("OTHER", bare_tokens=False)
        message = await rig.refused(rig.sasl.token(b"ann"), Code.SASL_AUTHENTICATION_FAILED)
        assert "WORD" in message

    asyncio.run(scenario())


@pytest.mark.parametrize(("reauthenticate_ms", "lifetime_ms"), [(0, 3_000), (2_000, 2_000), (9_000, 3_000)])
def test_a_session_does_not_outlive_its_credential(reauthenticate_ms, lifetime_ms) -> None:
    async def scenario() -> None:
        rig = Rig(reauthenticate_after_ms=reauthenticate_ms, expires_ms=HandClock().time_ms() + 3_000)
        assert await rig.enter() == lifetime_ms
        rig.clock.now_ms += lifetime_ms + 1
        assert PRODUCE not in rig.admitted()

    asyncio.run(scenario())
