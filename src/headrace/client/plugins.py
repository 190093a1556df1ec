"""Plug-ins: an option's value becomes an object that is configured once and closed once.

    "json" | "org.apache.kafka…" | "my.module.Class" | class | object | function
        → PluginLoader.load → configure(config) → used by the client → close()

`on_update` of a plug-in that has it is called with every new cluster.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from headrace.config import Log
from headrace.errors import ConfigError

log = logging.getLogger("headrace")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginKind(Generic[T]):
    """A kind of plug-in, such as serializers."""

    noun: str
    base: type[T]
    known: Mapping[str, type[T] | str] = field(default_factory=dict)
    """The classes of headrace, or their import paths, by short name and by the name of the equivalent Java class."""
    adapt: Callable[[object], T | None] = lambda _: None
    """Wraps an object that is not a `base` but has the methods; None if it has not."""


def is_for_application(error: BaseException) -> bool:
    """True if an error of user code has to reach the application: Ctrl-C and sys.exit() on its main thread.

    On any other thread these would only end that thread.
    """
    return not isinstance(error, Exception) and threading.current_thread() is threading.main_thread()


def copy_methods(source: object, target: object, *methods: str) -> None:
    """Set the methods that `source` has on `target`."""
    for method in methods:
        if hasattr(source, method):
            setattr(target, method, getattr(source, method))


def encoding_of(config: Mapping[str, object], noun: str, is_key: bool) -> str | None:
    """Return the option `key.NOUN.encoding` or `value.NOUN.encoding`, else `NOUN.encoding`, else None."""
    for option in (f"{'key' if is_key else 'value'}.{noun}.encoding", f"{noun}.encoding"):
        encoding = config.get(option)
        if encoding is not None:
            return check_encoding(option, encoding)
    return None


def check_encoding(option: str, encoding: object) -> str:
    """Return the name of an encoding; raises ConfigError if Python does not have it."""
    try:
        "".encode(str(encoding))
    except LookupError:
        raise ConfigError(
            f"invalid {option}: expected an encoding of Python, such as utf-8, got {encoding!r}"
        ) from None
    return str(encoding)


class PrefixedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines start with the kind of client and the ids that it has."""

    def __init__(self, kind: str, **ids: str | None) -> None:
        super().__init__(logging.getLogger(f"headrace.{kind}"), {})
        given = "".join(f" {name}={value}" for name, value in ids.items() if value is not None)
        self._prefix = f"[{kind}{given}]"

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._prefix} {msg}", kwargs


class PluginLoader:
    """Loads the plug-ins of a client, passes them the cluster, and closes them."""

    def __init__(self, config: Mapping[str, object], log: Log = log) -> None:
        self._config = config
        self.log = log
        self._closers: dict[int, tuple[object, Callable[[], object]]] = {}  # By identity: each is closed once.
        self._listeners: dict[int, Callable[[object], object]] = {}

    def load(self, option: str, value: object, kind: PluginKind[T], **configure_arguments: object) -> T:
        """Return the configured plug-in for an option's value. `configure` gets the config and the arguments."""
        given = _instance(option, value, kind)
        plugin = given if isinstance(given, kind.base) else kind.adapt(given)
        if plugin is None:
            raise ConfigError(f"{option} {given!r} is not a valid {kind.noun}: see {kind.base.__qualname__}")
        # The given object, not its wrapper, has the identity and may have `on_update`.
        self._remember(given, plugin)
        configure = getattr(plugin, "configure", None)
        if configure is not None:
            try:
                configure(self._config, **configure_arguments)
            except ConfigError:
                raise
            except Exception as error:
                raise ConfigError(f"{option}: {_name(given)} could not be configured: {error}") from error
        return plugin

    def _remember(self, given: object, plugin: object) -> None:
        close = getattr(plugin, "close", None)
        if close is not None:
            self._closers.setdefault(id(given), (given, close))
        on_update = getattr(given, "on_update", None)
        if on_update is not None:
            self._listeners.setdefault(id(given), on_update)

    def on_update(self, cluster: object) -> None:
        """Call `on_update` of the plug-ins; exceptions are logged."""
        for on_update in self._listeners.values():
            try:
                on_update(cluster)
            except BaseException as error:
                if is_for_application(error):
                    raise
                self.log.exception("cluster listener failed: %r", on_update)

    def close(self) -> None:
        """Close every plug-in once, the last loaded first; exceptions are logged."""
        while self._closers:
            _, (given, close) = self._closers.popitem()
            try:
                close()
            except BaseException as error:
                if is_for_application(error):
                    raise
                self.log.exception("%s could not be closed", _name(given))
        self._listeners.clear()


def _instance(option: str, value: object, kind: PluginKind[T]) -> object:
    target = kind.known.get(value, value) if isinstance(value, str) else value
    if isinstance(target, str):
        target = _import(option, target, kind)
    if not isinstance(target, type):
        return target
    try:
        return target()
    except Exception as error:
        raise ConfigError(f"{option}: {_name(target)} cannot be created without arguments: {error}") from error


def _import(option: str, path: str, kind: PluginKind[T]) -> object:
    module_name, _, attribute = path.replace(":", ".").rpartition(".")
    known = ", ".join(name for name in kind.known if "." not in name)
    remedy = f"expected the path of a Python class{f', or one of {known}' if known else ''}"
    if not module_name:
        raise ConfigError(f"invalid {option} {path!r}: {remedy}")
    if module_name.startswith(("org.apache.", "io.confluent.", "java.")):
        raise ConfigError(f"{option} {path!r} is a Java class without an equivalent in headrace: {remedy}")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a module may fail in any way while it is imported
        raise ConfigError(f"{option} {path!r} cannot be imported: {error}; {remedy}") from error


def _name(plugin: object) -> str:
    cls = plugin if isinstance(plugin, type) else type(plugin)
    return f"{cls.__module__}.{cls.__qualname__}"
