"""Reads a pipeline file: TOML → PipelineSpec. Reports all problems at once, with their lines.

    text → tables → -X overrides → ${VARIABLES} → checks of every table → PipelineSpec → checks of the whole

Variables are substituted in values after parsing, so they cannot add keys. The standard library's parser does not give
line numbers: TomlLines finds them by parsing the file statement by statement.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from headrace.config import Config, Secret
from headrace.errors import ConfigError
from headrace.spark.pipeline_spec import (
    OPEN_TABLES,
    TABLES,
    LiveView,
    MaskedOptions,
    PipelineSpec,
    Sink,
    Source,
    SparkSettings,
    Step,
    Trigger,
    problems_of,
)

FILE_BYTES_MAX = 1024 * 1024
NEAR_MIN = 0.6
FOLDER_VARIABLE = "PIPELINE_DIR"
"""The variable with the folder of the file. Spark resolves other relative paths from the working directory."""

_VARIABLE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{(?P<other>[^}]*)\}?"
)
_REQUIRED = {"source": ("format",), "sink": ("format",), "steps": ("name", "sql")}


def read_pipeline(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> PipelineSpec:
    """Read the pipeline in a file. `overrides` are texts `table.key=value`, which replace values of the file."""
    file = FilePath(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the pipeline {file}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{file} has {len(data)} bytes; a pipeline file may have at most {FILE_BYTES_MAX}")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from error
    variables = {FOLDER_VARIABLE: str(file.parent.absolute()), **(os.environ if environment is None else environment)}
    return parse_pipeline(text, str(file), overrides, variables)


def parse_pipeline(
    text: str, file: str = "pipeline", overrides: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> PipelineSpec:
    """Parse a pipeline. `file` is used in messages, and as the name of a pipeline without one."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    return _Reader(document, TomlLines(text), file, variables or {}).read(overrides)


class _Reader:
    """Reads a document once, and collects all problems."""

    def __init__(self, document: dict[str, Any], lines: TomlLines, file: str, variables: Mapping[str, str]) -> None:
        self._document = document
        self._lines = lines
        self._file = file
        self._variables = variables
        self._overridden: dict[Path, str] = {}  # path → the argument
        self._problems: list[str] = []

    def read(self, overrides: Sequence[str]) -> PipelineSpec:
        for argument in overrides:
            self._override(argument)
        self._check_names(self._document, {**TABLES}, (), "a pipeline")
        tables = {name: self._table(name) for name in TABLES if name != "steps"}
        steps = self._steps()
        self._raise_if_any()
        spec = self._spec(tables, steps)
        self._problems = [f"{spec.at(table)}[{_head(table)}] {problem}" for table, problem in problems_of(spec)]
        self._raise_if_any()
        return spec

    def _raise_if_any(self) -> None:
        if self._problems:
            raise ConfigError("\n".join(dict.fromkeys(self._problems)))

    def _add_problem(self, path: Path, problem: str) -> None:
        self._problems.append(f"{self._location(path)}: {problem}")

    def _location(self, path: Path) -> str:
        for length in range(len(path), 0, -1):
            if argument := self._overridden.get(path[:length]):
                return argument
        line = self._lines.line_of(path)
        return self._file if line is None else f"{self._file}, line {line}"

    # -- from the command line ---------------------------------------------------------------------

    def _override(self, argument: str) -> None:
        """Set `table.key=value` in the document. Steps are addressed by their names."""
        name, equals, value = argument.partition("=")
        parts = name.strip().split(".")
        if not equals or len(parts) < 2 or not all(parts):
            raise ConfigError(f"invalid -X: expected table.key=value, got {argument!r}")
        head, rest = parts[0], parts[1:]
        path: Path = (head,)
        if head == "steps":
            path += (self._step_number(rest[0], argument),)
            rest = rest[1:]
        elif rest[0] == OPEN_TABLES.get(head) and len(rest) > 1:
            path, rest = (head, rest[0]), [".".join(rest[1:])]
        if len(rest) != 1:
            raise ConfigError(f"-X {argument}: expected table.key=value, and {name.strip()!r} is not a key of a table")
        target: Any = self._document
        for part in path:
            target = target[part] if isinstance(part, int) else target.setdefault(part, {})
            if not isinstance(target, dict | list):
                raise ConfigError(f"-X {argument}: {part!r} is not a table in {self._file}")
        if len(path) == 2 and path[1] == OPEN_TABLES.get(head):
            _drop_nested(target, rest[0])
        # The shell has substituted variables on the command line already: escape the rest.
        target[rest[0]] = value.strip().replace("${", "$${")
        self._overridden[(*path, rest[0])] = f"-X {name.strip()}"

    def _step_number(self, name: str, argument: str) -> int:
        steps = self._document.get("steps", [])
        for number, step in enumerate(steps if isinstance(steps, list) else []):
            if isinstance(step, dict) and step.get("name") == name:
                return number
        raise ConfigError(f"-X {argument}: there is no step {name!r} in {self._file}")

    # -- tables --------------------------------------------------------------------------------

    def _table(self, name: str) -> tuple[Config, MaskedOptions]:
        table = self._document.get(name, {})
        if not isinstance(table, dict):
            self._add_problem((name,), f"{name} is {table!r}; it may be a table, which begins with [{name}]")
            table = {}
        inner = OPEN_TABLES.get(name)
        options = MaskedOptions(self._open_table((name, inner), table.get(inner, {}))) if inner else MaskedOptions()
        return self._checked(name, (name,), {key: value for key, value in table.items() if key != inner}), options

    def _steps(self) -> list[Config]:
        steps = self._document.get("steps", [])
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            self._add_problem(("steps",), "steps are not tables; each begins with [[steps]]")
            return []
        return [self._checked("steps", ("steps", number), step) for number, step in enumerate(steps)]

    def _checked(self, name: str, path: Path, table: Mapping[str, Any]) -> Config:
        options = TABLES[name]
        head = f"[[{name}]]" if name == "steps" else f"[{name}]"
        self._check_names(table, {**options, **dict.fromkeys(filter(None, [OPEN_TABLES.get(name)]))}, path, head)
        values: dict[str, object] = {}
        for key, option in options.items():
            if key not in table:
                continue
            text = self._substituted((*path, key), table[key], is_sql=key == "sql")
            try:
                values[key] = option.parse(text)
            except ConfigError as error:
                self._add_problem((*path, key), f"{head} {error}")
        for key in _REQUIRED.get(name, ()):
            if key not in table:
                self._add_problem(
                    path, f"{head} {key} is not set; it may be {options[key].allowed} ({options[key].doc})"
                )
        return options.resolve(("file", values))

    def _check_names(self, table: Mapping[str, Any], known: Mapping[str, Any], path: Path, where: str) -> None:
        for name in table:
            if name in known:
                continue
            near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR_MIN)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            inner = OPEN_TABLES.get(str(path[0])) if path else None
            if inner and not near:
                hint = f"; Spark options go into [{path[0]}.{inner}]"
            self._add_problem((*path, name), f"there is no {name!r} in {where}{hint} (it has {', '.join(known)})")

    def _open_table(self, path: Path, table: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Yield Spark options; dotted keys such as `kafka.bootstrap.servers = …` are one name."""
        if not isinstance(table, dict):
            self._add_problem(path, f"{path[-1]} is {table!r}; it may be a table, which begins with [{_dotted(path)}]")
            return
        for key, value in table.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict):
                yield from self._open_table((*path, key), value, f"{name}.")
            elif isinstance(value, bool | int | float | str | datetime.date | datetime.time):
                text = str(value).lower() if isinstance(value, bool) else str(value)
                yield name, str(self._substituted((*path, key), text))
            else:
                self._add_problem((*path, key), f"{name} is {value!r}; it may be a text, a number, true or false")

    # -- variables -----------------------------------------------------------------------------

    def _substituted(self, path: Path, value: Any, is_sql: bool = False) -> Any:
        """Return a value with variables substituted. In SQL, `${…}` that is not a plain name is left to Spark."""
        if isinstance(value, list):
            return [self._substituted(path, item) for item in value]
        if not isinstance(value, str):
            return value

        def replaced(match: re.Match[str]) -> str:
            name = match["name"]
            if name is None:
                if match["other"] is None:
                    return "${"  # the escape $${
                if not is_sql:
                    self._add_problem(
                        path, f"{match[0]!r} is not a variable; it may be ${{NAME}} or ${{NAME:-default}}, or $${{…"
                    )
                return match[0]
            if name in self._variables:
                return self._variables[name]
            if match["default"] is None:
                self._add_problem(
                    path, f"the environment variable {name} is not set: set it, or write ${{{name}:-a default}}"
                )
            return match["default"] or ""

        return _VARIABLE.sub(replaced, value)

    # -- the whole -----------------------------------------------------------------------------

    def _spec(self, tables: Mapping[str, tuple[Config, MaskedOptions]], steps: Sequence[Config]) -> PipelineSpec:
        (source, source_options), (sink, sink_options) = tables["source"], tables["sink"]
        trigger, (spark, spark_config) = tables["trigger"][0], tables["spark"]
        view = tables["view"][0]
        token = view.optional(Secret, "token")
        paths: dict[str, Path] = {name: (name,) for name in TABLES}
        paths |= {f"{name}.{inner}": (name, inner) for name, inner in OPEN_TABLES.items()}
        paths |= {f"steps.{number}": ("steps", number, "sql") for number in range(len(steps))}
        return PipelineSpec(
            name=tables["pipeline"][0].optional(str, "name") or FilePath(self._file).stem,
            source=Source(
                source.of(str, "format"),
                source.optional(str, "path"),
                source.optional(str, "schema"),
                source_options,
            ),
            steps=tuple(Step(step.of(str, "name"), step.of(str, "sql")) for step in steps),
            sink=Sink(
                sink.of(str, "format"),
                sink.optional(str, "path"),
                sink.of(str, "mode"),
                sink.optional(str, "checkpoint"),
                sink.of(tuple, "partition_by"),
                sink_options,
            ),
            trigger=Trigger(trigger.of(str, "mode"), trigger.optional(str, "interval")),
            spark=SparkSettings(spark.of(str, "master"), spark_config),
            view=LiveView(view.optional(str, "url") or None, None if token is None else token.reveal()),
            locations={name: self._location(path) for name, path in paths.items()},
        )


def _drop_nested(table: dict[str, Any], name: str) -> None:
    """Remove a dotted name from nested tables."""
    head, dot, rest = name.partition(".")
    while dot:
        if isinstance(table.get(head), dict):
            _drop_nested(table[head], rest)
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    table.pop(name, None)


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _head(table: str) -> str:
    return "[steps]" if table.startswith("steps.") else table


Path = tuple[str | int, ...]

_CLOSERS = ('"""', "'''", "]", "}")


class TomlLines:
    """The lines of keys in a valid TOML text: `("steps", 1, "sql")` → 17.

    A statement (a table header, or a key with its value) begins on a new line and ends where the parser accepts it. So
    each is found by parsing, and the result has its path.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}  # of arrays of tables so far
        self._read(text.split("\n"))

    def line_of(self, path: Path) -> int | None:
        """Return the line of a key; for a key in an inline table, the line of the table."""
        for length in range(len(path), 0, -1):
            if (line := self._lines.get(path[:length])) is not None:
                return line
        return None

    def _read(self, lines: list[str]) -> None:
        table: Path = ()
        number = 0
        while number < len(lines):
            head = lines[number].strip()
            if not head or head.startswith("#"):
                number += 1
                continue
            parsed, end = _statement(lines, number)
            if head.startswith("["):
                table = self._table(_only_path(parsed), is_array=head.startswith("[["))
                self._set_line(table, number + 1)
            else:
                path = _only_path(parsed)
                for length in range(1, len(path) + 1):  # a.b = 1 also creates the table a
                    self._set_line(table + path[:length], number + 1)
            number = end

    def _table(self, names: Path, is_array: bool) -> Path:
        """Return the path of a table with array indexes: the second `[[steps]]` is ("steps", 1)."""
        path: Path = ()
        for position, name in enumerate(names):
            path += (name,)
            if is_array and position == len(names) - 1:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path += (self._counts[path] - 1,)
        return path

    def _set_line(self, path: Path, line: int) -> None:
        self._lines.setdefault(path, line)


def _statement(lines: list[str], begin: int) -> tuple[Mapping[str, Any], int]:
    """Return the parsed statement that begins on a line, and the line after it."""
    for end in range(begin + 1, len(lines) + 1):
        if end > begin + 1 and not any(closer in lines[end - 1] for closer in _CLOSERS):
            continue  # parsing a long text once for each line would take quadratic time
        try:
            return tomllib.loads("\n".join(lines[begin:end])), end
        except tomllib.TOMLDecodeError:
            continue
    raise ValueError(f"no statement begins on line {begin + 1}")


def _only_path(parsed: Any) -> Path:
    """Return the keys down a mapping with one entry on each level, without the value."""
    path: Path = ()
    while isinstance(parsed, dict) and len(parsed) == 1:
        name, parsed = next(iter(parsed.items()))
        path += (name,)
        if isinstance(parsed, list):
            break
    return path
