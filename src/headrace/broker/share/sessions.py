"""Share sessions: the partitions that a member fetches from this broker.

    epoch of a request    meaning
    0                     a new session, which replaces the one of the member
    1, 2, …               the next request of the session; only partitions that have changed are in it
    -1                    the end of the session; its records are released

A session also ends with the connection of its member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.errors import BrokerError, Code

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

TopicIdPartition = tuple[bytes, int]
SessionKey = tuple[str, str]
"""Group id and member id."""


@dataclass(slots=True, eq=False)
class ShareSession:
    """A session of a member."""

    group_id: str
    member_id: str
    connection: object
    partitions: dict[TopicIdPartition, bool]  # whether the partition was in a response; in the order of the next fetch
    epoch: int = 1

    @property
    def key(self) -> SessionKey:
        return self.group_id, self.member_id

    def advance(self) -> None:
        """Move to the epoch of the next request."""
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def update(self, added: Iterable[TopicIdPartition], removed: Iterable[TopicIdPartition]) -> None:
        """Add and remove partitions."""
        for partition in added:
            self.partitions.setdefault(partition, False)
        for partition in removed:
            self.partitions.pop(partition, None)

    def delivered(self, partition: TopicIdPartition) -> None:
        """Move a partition that has delivered records to the end, so that others come first."""
        if self.partitions.pop(partition, None) is not None:
            self.partitions[partition] = True


class ShareSessions:
    """The sessions of this broker. Event loop only."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[SessionKey, ShareSession] = {}

    def create(
        self, group_id: str, member_id: str, connection: object, partitions: Iterable[TopicIdPartition]
    ) -> ShareSession:
        """Start a session; it replaces an older one of the member."""
        self._sessions.pop((group_id, member_id), None)
        if len(self._sessions) >= self._sessions_max:
            raise BrokerError(
                f"the limit of {self._sessions_max} share sessions is reached (group.share.max.share.sessions)",
                code=Code.SHARE_SESSION_LIMIT_REACHED,
            )
        session = ShareSession(group_id, member_id, connection, dict.fromkeys(partitions, False))
        self._sessions[session.key] = session
        return session

    def find(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session of a request that continues or ends it; it expects the next epoch from now on."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise BrokerError("The share session was not found.", code=Code.SHARE_SESSION_NOT_FOUND)
        if epoch != FINAL_EPOCH:
            if session.epoch != epoch:
                raise BrokerError("The share session epoch is invalid.", code=Code.INVALID_SHARE_SESSION_EPOCH)
            session.advance()
        return session

    def is_current(self, session: ShareSession) -> bool:
        """Return whether a session has not ended."""
        return self._sessions.get(session.key) is session

    def remove(self, session: ShareSession) -> None:
        """End a session."""
        if self.is_current(session):
            del self._sessions[session.key]

    def has_group(self, group_id: str) -> bool:
        """Return whether a group has any session."""
        return any(session.group_id == group_id for session in self._sessions.values())

    def of_connection(self, connection: object) -> Iterator[ShareSession]:
        """Yield the sessions of a connection."""
        return iter([session for session in self._sessions.values() if session.connection is connection])
