"""Faults on demand: chosen requests are answered with an error, late, never, or not at all because the broker dies.

    inject(api=…, topic=…, error=…|delay_ms=…|drop|close|crash) → a rule
    request → `match` → Fault → `run`, in place of the handler alone

What the dispatcher does with it, for every request once it is decoded::

    if faults.active and (fault := faults.match(context, message)) is not None:
        answer = fault.run(context, message, lambda: handle(broker, context, message))     # a coroutine
    else:
        answer = handle(broker, context, message)

`run` gives what a handler gives: a message, or None for silence. It raises `CloseConnection` where the connection is to
be closed without an answer. The first rule that fits takes the request, in the order of injection. `when="after"` lets
the handler do its work first, and spoils the answer only: an acknowledgement that got lost.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.broker.context import Context, HandlerResult
from headrace.broker.error_responses import error_response, topics_in
from headrace.errors import Code, ConfigError, IllegalStateError
from headrace.wire.api import APIS, api_name
from headrace.wire.api_keys import ApiKey
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from random import Random

RULES_MAX = 1000
DELAY_MS_MAX = 3_600_000
# A dropped request holds up its connection, for answers keep their order. No client waits longer than this.
DROP_SECONDS_MAX = 900.0
CRASH_EXIT_CODE = 137  # what a shell reports of a process that was killed
_WHEN = ("before", "after")


class CloseConnection(Exception):  # noqa: N818 - an order, not an error
    """Close the connection that the request came by, and say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """What is to go wrong, and for whom. As plain values, so that it travels as JSON."""

    api: str | int | None = None  # name or key; None: every request
    topic: str | None = None  # a name, or a pattern as of a shell
    client_id: str | None = None  # likewise
    error: str | int | None = None  # name or number of Kafka's code
    delay_ms: float = 0
    drop: bool = False
    close: bool = False
    crash: bool = False
    when: str = "before"
    count: int | None = None  # how many times; None: until removed
    probability: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        endings = [name for name in ("drop", "close", "crash") if getattr(self, name)]
        endings += ["error"] if self.error is not None else []
        if len(endings) > 1:
            raise ConfigError(f"a fault ends a request in one way, not in {len(endings)}: {', '.join(endings)}")
        if not endings and not self.delay_ms:
            raise ConfigError("a fault needs one of error, delay_ms, drop, close and crash")
        if self.when not in _WHEN:
            raise ConfigError(f"when is {self.when!r}; it may be before or after")
        if not 0 <= self.delay_ms <= DELAY_MS_MAX:
            raise ConfigError(f"delay_ms is {self.delay_ms!r}; it may be 0 to {DELAY_MS_MAX}")
        if self.count is not None and self.count < 1:
            raise ConfigError(f"count is {self.count!r}; it may be 1 or more, or left out")
        if not 0 < self.probability <= 1:
            raise ConfigError(f"probability is {self.probability!r}; it may be more than 0, up to 1")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> FaultSpec:
        """The specification in an object of JSON; names that nobody knows are errors."""
        known = {one.name for one in fields(cls)}
        for name in values.keys() - known:
            raise ConfigError(f"a fault has no {name!r}; it has {', '.join(sorted(known))}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"a value of the fault is of the wrong type: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Only what differs from the defaults."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


def api_key_of(api: str | int) -> int:
    """The key of an API by key or name; `AddPartitionsToTxn` and `add_partitions_to_txn` are the same."""
    if isinstance(api, int) or api.isdecimal():
        if int(api) in APIS:
            return int(api)
        raise ConfigError(f"there is no API with key {api}")
    found = _APIS_BY_NAME.get(_folded(api))
    if found is None:
        raise ConfigError(f"there is no API {api!r}; there are {', '.join(name for name, _ in APIS.values())}")
    return found


def error_code_of(error: str | int) -> int:
    """The code of an error by number or name."""
    if isinstance(error, int) or error.lstrip("-").isdecimal():
        return int(error)
    try:
        return Code[error.upper().replace("-", "_")]
    except KeyError:
        raise ConfigError(f"there is no error {error!r}; NOT_LEADER_OR_FOLLOWER is one") from None


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


_APIS_BY_NAME = {_folded(name): key for key, (name, _) in APIS.items()}


@dataclass(slots=True, kw_only=True)
class Rule:
    """A fault that was injected, and how often it came to pass."""

    id: int
    spec: FaultSpec
    api_key: int | None
    error_code: int | None
    hits: int = 0
    chances: Random = field(repr=False)

    @property
    def is_spent(self) -> bool:
        return self.spec.count is not None and self.hits >= self.spec.count

    def to_json(self) -> dict[str, Any]:
        api = "*" if self.api_key is None else api_name(self.api_key)
        return {"id": self.id, "hits": self.hits, "spent": self.is_spent, **asdict(self.spec), "api": api}


class Faults:
    """The rules of one broker. Event loop only."""

    def __init__(self) -> None:
        self.active = False  # whether any rule is left: all that a request costs when there is none
        self.may_crash = True  # not where the broker shares its process
        self.topic_name: Callable[[bytes], str | None] = _unknown  # new versions name topics by id
        self._released = asyncio.Event()
        self._rules: dict[int, Rule] = {}
        self._ids = itertools.count(1)

    def inject(self, **values: Any) -> Rule:
        """Add a fault; see `FaultSpec` for what it takes."""
        spec = FaultSpec.from_json(values)
        if spec.crash and not self.may_crash:
            raise IllegalStateError("a broker in a thread of its user cannot crash: start it in a process of its own")
        if len(self._rules) >= RULES_MAX:
            raise IllegalStateError(f"there are {RULES_MAX} faults already: remove some first")
        from random import Random

        rule = Rule(
            id=next(self._ids),
            spec=spec,
            api_key=None if spec.api in (None, "*") else api_key_of(spec.api),
            error_code=None if spec.error is None else error_code_of(spec.error),
            chances=Random(spec.seed),
        )
        self._rules[rule.id] = rule
        self._update()
        return rule

    def list(self) -> list[Rule]:
        """All that were injected and not removed, the spent ones too."""
        return [*self._rules.values()]

    def remove(self, rule_id: int) -> bool:
        """Take one away; whether it was there."""
        found = self._rules.pop(rule_id, None)
        self._update()
        return found is not None

    def clear(self) -> int:
        """Take all away; how many there were."""
        count = len(self._rules)
        self._rules.clear()
        self._update()
        return count

    def match(self, context: Context, message: Message) -> Fault | None:
        """The fault that this request meets, if any; it counts as a hit."""
        for rule in self._rules.values():
            if self._fits(rule, context, message):
                rule.hits += 1
                if rule.is_spent:
                    self._update()
                return Fault(rule, self.pause)
        return None

    async def pause(self, seconds: float) -> None:
        """Let time pass, unless the broker is to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), seconds)

    def release(self) -> None:
        """The broker is to stop: nobody is kept waiting any longer."""
        self.clear()
        self._released.set()

    def _fits(self, rule: Rule, context: Context, message: Message) -> bool:
        spec = rule.spec
        if rule.is_spent or (rule.api_key is not None and rule.api_key != context.api_key):
            return False
        if spec.client_id is not None and not fnmatchcase(context.client_id or "", spec.client_id):
            return False
        if spec.topic is not None and not any(
            fnmatchcase(name, spec.topic) for name in topics_in(message, self.topic_name)
        ):
            return False
        return spec.probability >= 1 or rule.chances.random() < spec.probability

    def _update(self) -> None:
        self.active = any(not rule.is_spent for rule in self._rules.values())


def _unknown(topic_id: bytes) -> None:
    return None


class Fault:
    """What happens to one request."""

    __slots__ = ("_pause", "_rule")

    def __init__(self, rule: Rule, pause: Callable[[float], Awaitable[None]]) -> None:
        self._rule = rule
        self._pause = pause

    async def run(self, context: Context, message: Message, handle: Callable[[], HandlerResult]) -> Message | None:
        """Do it: in place of the handler, before it, or after it."""
        spec = self._rule.spec
        answer: Message | None = None
        if spec.when == "after":
            answer = await _answer(handle)
        if spec.delay_ms:
            await self._pause(spec.delay_ms / 1000)
        if spec.crash:
            _crash()
        if spec.close:
            raise CloseConnection
        if spec.drop:
            await self._pause(DROP_SECONDS_MAX)
            raise CloseConnection
        if self._rule.error_code is not None:
            if context.api_key == ApiKey.PRODUCE and getattr(message, "acks", None) == 0:
                raise CloseConnection  # all that a broker can say to who wants no answer
            return await error_response(context, message, self._rule.error_code, lambda: _answer(handle, answer))
        return answer if spec.when == "after" else await _answer(handle)


async def _answer(handle: Callable[[], HandlerResult], given: Message | None = None) -> Message | None:
    """What the handler says; `given` if it was asked already."""
    answer = handle() if given is None else given
    return await answer if inspect.isawaitable(answer) else answer


def _crash() -> NoReturn:
    os._exit(CRASH_EXIT_CODE)
