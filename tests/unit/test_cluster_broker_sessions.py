"""Broker sessions: heartbeats and closed connections."""

from __future__ import annotations

import asyncio

from headrace.broker.cluster.broker_sessions import RECONNECT_MS_MAX, BrokerSessions
from headrace.broker.context import Session
from headrace.errors import BrokerError, Code
from tests.support.fake_internal import HandClock
from tests.support.group_rig import on_loop

TIMEOUT_MS = 6_000


class Rig:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.ended: list[int] = []
        self.sessions = BrokerSessions(self.clock, TIMEOUT_MS, self.ended.append)


def line() -> Session:
    return Session("127.0.0.1", "PLAINTEXT")


@on_loop
async def test_a_session_without_heartbeats_expires() -> None:
    rig = Rig()
    rig.sessions.touch(2, line())
    rig.sessions.touch(3, line())
    await rig.clock.run(TIMEOUT_MS - 500)
    rig.sessions.touch(3, line())
    assert rig.ended == []
    await rig.clock.run(1_000)
    assert rig.ended == [2]
    await rig.clock.run(TIMEOUT_MS)
    assert rig.ended == [2, 3]
    await rig.clock.run(TIMEOUT_MS)
    assert rig.ended == [2, 3]


@on_loop
async def test_an_expiry_that_cannot_be_recorded_is_retried() -> None:
    rig = Rig()
    is_full = True

    def ended(node_id: int) -> None:
        if is_full:
            raise BrokerError("no space left on device", code=Code.KAFKA_STORAGE_ERROR)
        rig.ended.append(node_id)

    sessions = BrokerSessions(rig.clock, TIMEOUT_MS, ended)
    sessions.touch(2, line())
    await rig.clock.run(2 * TIMEOUT_MS)
    is_full = False
    await rig.clock.run(2_000)
    assert rig.ended == [2]


@on_loop
async def test_a_closed_connection_shortens_the_session_unless_reconnected() -> None:
    rig = Rig()
    two, three = line(), line()
    rig.sessions.touch(2, two)
    rig.sessions.touch(3, three)
    rig.sessions.disconnected(line())  # a client's
    rig.sessions.disconnected(two)
    rig.sessions.disconnected(three)
    assert not rig.sessions.is_connected(2)
    await rig.clock.run(RECONNECT_MS_MAX / 2)
    rig.sessions.touch(3, line())
    assert rig.sessions.is_connected(3)
    await rig.clock.run(RECONNECT_MS_MAX)
    assert rig.ended == [2]


@on_loop
async def test_closing_an_old_connection_does_not_affect_the_session() -> None:
    rig = Rig()
    old = line()
    rig.sessions.touch(2, old)
    rig.sessions.touch(2, line())
    rig.sessions.disconnected(old)
    await rig.clock.run(TIMEOUT_MS / 2)
    assert rig.ended == []


@on_loop
async def test_a_stalled_controller_does_not_expire_sessions() -> None:
    rig = Rig()
    rig.sessions.touch(2, line())
    await rig.clock.run(1_000)
    rig.clock.now_ms += 60_000  # paused: no timer has fired meanwhile
    await rig.clock.run(200)
    assert rig.ended == []
    rig.sessions.touch(2, line())
    await asyncio.sleep(0)
    await rig.clock.run(TIMEOUT_MS + 200)
    assert rig.ended == [2]
