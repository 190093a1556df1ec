"""Fault injection: selected requests fail, are delayed, get no response, or crash the broker.

    inject(api=…, topic=…, error=…|delay_ms=…|drop|close|crash) → a rule
    request → `match` → Fault → `run`, instead of the handler alone

The dispatcher uses it for every decoded request::

    if faults.active and (fault := faults.match(context, request)) is not None:
        result = fault.run(context, request, lambda: handle(broker, context, request))     # a coroutine
    else:
        result = handle(broker, context, request)

`run` returns what a handler returns: a response, or None. It raises `CloseConnection` to close the connection without a
response. The first matching rule applies, in the order of injection. `when="after"` runs the handler first and then
loses or replaces its response.
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
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.broker.context import Context, HandlerResult
from headrace.broker.error_responses import error_response, topics_in
from headrace.errors import Code, ConfigError, IllegalStateError
from headrace.wire.api import APIS, ApiKey, api_name
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from random import Random

RULES_MAX = 1000
DELAY_MS_MAX = 3_600_000
# A dropped request blocks its connection, because responses keep their order. No client waits longer than this.
DROP_SECONDS_MAX = 900.0
CRASH_EXIT_CODE = 137  # what a shell reports for a killed process
_WHEN = ("before", "after")


class CloseConnection(Exception):  # noqa: N818 - an order, not an error
    """Close the connection of the request without a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """The specification of a fault, in values that JSON can represent."""

    api: str | int | None = None  # name or key; None: every request
    topic: str | None = None  # a name or a shell pattern
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
        outcomes = [name for name in ("drop", "close", "crash") if getattr(self, name)]
        outcomes += ["error"] if self.error is not None else []
        if len(outcomes) > 1:
            raise ConfigError(f"invalid fault: expected one of drop, close, crash and error, got {', '.join(outcomes)}")
        if not outcomes and not self.delay_ms:
            raise ConfigError("invalid fault: expected one of error, delay_ms, drop, close and crash")
        if self.when not in _WHEN:
            raise ConfigError(f"invalid when {self.when!r}: expected before or after")
        if not 0 <= self.delay_ms <= DELAY_MS_MAX:
            raise ConfigError(f"invalid delay_ms {self.delay_ms!r}: expected 0 to {DELAY_MS_MAX}")
        if self.count is not None and self.count < 1:
            raise ConfigError(f"invalid count {self.count!r}: expected at least 1")
        if not 0 < self.probability <= 1:
            raise ConfigError(f"invalid probability {self.probability!r}: expected more than 0, up to 1")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> FaultSpec:
        """Parse a JSON object; unknown names are errors."""
        known = {spec_field.name for spec_field in fields(cls)}
        for name in values.keys() - known:
            raise ConfigError(f"unknown field {name!r} of a fault: expected {', '.join(sorted(known))}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"invalid type of a value of the fault: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the values that differ from the defaults."""
        return {
            spec_field.name: value
            for spec_field in fields(self)
            if (value := getattr(self, spec_field.name)) != spec_field.default
        }


def api_key_of(api: str | int) -> int:
    """Return an API key by number or name; `AddPartitionsToTxn` and `add_partitions_to_txn` are equal."""
    if isinstance(api, int) or api.isdecimal():
        if int(api) in APIS:
            return int(api)
        raise ConfigError(f"unknown API key {api}")
    rule = _APIS_BY_NAME.get(_folded(api))
    if rule is None:
        raise ConfigError(f"unknown API {api!r}: expected one of {', '.join(map(api_name, APIS))}")
    return rule


def error_code_of(error: str | int) -> int:
    """Return an error code by number or name."""
    if isinstance(error, int) or error.lstrip("-").isdecimal():
        return int(error)
    try:
        return Code[error.upper().replace("-", "_")]
    except KeyError:
        raise ConfigError(f"unknown error {error!r}: expected a name such as NOT_LEADER_OR_FOLLOWER") from None


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


_APIS_BY_NAME = {_folded(key.name): int(key) for key in APIS}


@dataclass(slots=True, kw_only=True)
class Rule:
    """An injected fault and its number of hits."""

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
        self.active = False  # whether any rule is left: without rules a request costs only this check
        self.may_crash = True  # False if the broker shares its process
        self.topic_name: Callable[[bytes], str | None] = _unknown  # newer requests have topic ids
        self._released = asyncio.Event()
        self._rules: dict[int, Rule] = {}
        self._ids = itertools.count(1)

    def inject(self, **values: Any) -> Rule:
        """Add a fault; see `FaultSpec` for the arguments."""
        spec = FaultSpec.from_json(values)
        if spec.crash and not self.may_crash:
            raise IllegalStateError("crash is not possible for a broker in a thread: start it in a separate process")
        if len(self._rules) >= RULES_MAX:
            raise IllegalStateError(f"the maximum of {RULES_MAX} faults is reached: remove some first")
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
        """Return all rules that were not removed, including spent ones."""
        return [*self._rules.values()]

    def remove(self, rule_id: int) -> bool:
        """Remove a rule; return whether it existed."""
        rule = self._rules.pop(rule_id, None)
        self._update()
        return rule is not None

    def clear(self) -> int:
        """Remove all rules; return how many there were."""
        count = len(self._rules)
        self._rules.clear()
        self._update()
        return count

    def match(self, context: Context, message: Message) -> Fault | None:
        """Return the fault for a request, if any, and count a hit."""
        for rule in self._rules.values():
            if self._fits(rule, context, message):
                rule.hits += 1
                if rule.is_spent:
                    self._update()
                return Fault(rule, self.pause)
        return None

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the broker stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), seconds)

    def release(self) -> None:
        """Remove all rules and end all pauses: the broker stops."""
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
    """The fault of one request."""

    __slots__ = ("_pause", "_rule")

    def __init__(self, rule: Rule, pause: Callable[[float], Awaitable[None]]) -> None:
        self._rule = rule
        self._pause = pause

    async def run(self, context: Context, message: Message, handle: Callable[[], HandlerResult]) -> Message | None:
        """Apply the fault instead of, before or after the handler."""
        spec = self._rule.spec
        response: Message | None = None
        if spec.when == "after":
            response = await _call_handler(handle)
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
                raise CloseConnection  # with acks=0 an error closes the connection
            return await error_response(
                context, message, self._rule.error_code, lambda: _call_handler(handle, response)
            )
        return response if spec.when == "after" else await _call_handler(handle)


async def _call_handler(handle: Callable[[], HandlerResult], known: Message | None = None) -> Message | None:
    """Return the response of the handler, or `known` if it was called already."""
    response = handle() if known is None else known
    return await response if inspect.isawaitable(response) else response


def _crash() -> NoReturn:
    os._exit(CRASH_EXIT_CODE)
