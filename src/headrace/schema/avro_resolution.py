"""Schema resolution: how bytes of a writer's schema become columns of a reader's schema, as a plan for the kernel.

    writer's schema, reader's schema → resolve → DecodePlan → AvroDecoder
    reader's schema, names of columns → project → reader's schema with these fields only

The rules are those of Avro's specification: fields by name or alias, defaults for missing fields, promotion of numbers
and between bytes and string, symbols of enums by name, branches of unions by type. Where it is vague:

- Named types match by unqualified name, or by an alias of the reader.
- A branch of the reader's union with the writer's own type is preferred to an earlier one by promotion, as in Java.
- Times of different units do not match: the bytes would be read as other times.

What can match for some values only (a branch of a union, a symbol) fails when such a value is decoded; everything else
fails here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.errors import SchemaError
from headrace.schema import avro_schema as avro
from headrace.schema._avro.layout import Op
from headrace.schema._plan.layout import decimal_limit
from headrace.schema.avro_defaults import encode_default
from headrace.schema.avro_schema import AvroSchema, describe
from headrace.schema.avro_types import arrow_type
from headrace.schema.codec import DecodePlan, choose_fields, join_path, shorten

NODES_MAX = 100_000

_PROMOTIONS = {
    ("int", "int"): Op.INT,
    ("int", "long"): Op.INT_TO_LONG,
    ("int", "float"): Op.LONG_TO_FLOAT,
    ("int", "double"): Op.LONG_TO_DOUBLE,
    ("long", "long"): Op.LONG,
    ("long", "float"): Op.LONG_TO_FLOAT,
    ("long", "double"): Op.LONG_TO_DOUBLE,
    ("float", "float"): Op.FLOAT,
    ("float", "double"): Op.FLOAT_TO_DOUBLE,
    ("double", "double"): Op.DOUBLE,
    ("boolean", "boolean"): Op.BOOLEAN,
    ("null", "null"): Op.NULL,
    ("bytes", "bytes"): Op.BYTES,
    ("bytes", "string"): Op.STRING,
    ("string", "string"): Op.STRING,
    ("string", "bytes"): Op.BYTES,
}
_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def resolve(writer: AvroSchema, reader: AvroSchema) -> DecodePlan:
    """Return the plan to decode values of the writer's schema as the reader's."""
    plan = DecodePlan(arrow_type(reader))
    try:
        _Resolver(plan).value(writer, reader, 0, "")
    except _PlanTooLargeError:
        raise SchemaError(
            f"the plan to read {shorten(describe(writer))} has more than {NODES_MAX:,} steps; "
            f"use fewer unions of large records"
        ) from None
    return plan


def project(schema: AvroSchema, columns: Iterable[str]) -> AvroSchema:
    """Return a record schema with the named fields only. `a.b` names field b of the records in field a."""
    if not isinstance(schema, avro.RecordType):
        raise SchemaError(f"columns can be chosen of a record only, not of {describe(schema)}")
    return _project(schema, [name.split(".") for name in columns], "")


def _project(schema: AvroSchema, names: Sequence[Sequence[str]], path: str) -> AvroSchema:
    if any(not name for name in names):
        return schema  # chosen as a whole
    if isinstance(schema, avro.RecordType):
        chosen = choose_fields(schema.fields, names, path, "field", f"Avro record {schema.name}")
        fields = [
            replace(entry, type=_project(entry.type, inner, join_path(path, entry.name))) for entry, inner in chosen
        ]
        return replace(schema, fields=tuple(fields))
    if isinstance(schema, avro.ArrayType):
        return replace(schema, items=_project(schema.items, names, path))
    if isinstance(schema, avro.MapType):
        return replace(schema, values=_project(schema.values, names, path))
    if isinstance(schema, avro.UnionType) and len(schema.members) == 1:
        (member,) = schema.members
        branches = list(schema.branches)
        branches[member] = _project(branches[member], names, path)
        return replace(schema, branches=tuple(branches))
    raise SchemaError(f"{path} is {describe(schema)}, without the field {names[0][0]}; choose {path} as a whole")


def least_bytes(schema: AvroSchema) -> int:
    """Return how many bytes a value has at least."""
    if isinstance(schema, avro.FixedType):
        return schema.size
    if isinstance(schema, avro.RecordType):
        return sum(least_bytes(entry.type) for entry in schema.fields)
    if isinstance(schema, avro.UnionType):
        return 1 + min(least_bytes(branch) for branch in schema.branches)
    return _FIXED_BYTES.get(schema.kind, 1)


def _names_match(writer: avro.NamedType, reader: avro.NamedType) -> bool:
    short_name = writer.name.rpartition(".")[2]
    if short_name == reader.name.rpartition(".")[2]:
        return True
    return any(writer.name == alias or short_name == alias.rpartition(".")[2] for alias in reader.aliases)


def _mismatch(writer: AvroSchema, reader: AvroSchema) -> str:
    """Return why two types that are not unions never match, apart from what is inside them; empty if they may."""
    if isinstance(writer, avro.PrimitiveType) and isinstance(reader, avro.PrimitiveType):
        if (writer.kind, reader.kind) not in _PROMOTIONS:
            return "these types do not match"
        return _logical_mismatch(writer, reader)
    if writer.kind != reader.kind:
        return "these types do not match"
    if isinstance(writer, avro.NamedType) and isinstance(reader, avro.NamedType):
        if not _names_match(writer, reader):
            return f"the names differ; add the alias {writer.name} to the reader's"
        if isinstance(writer, avro.FixedType) and isinstance(reader, avro.FixedType):
            return "the sizes differ" if writer.size != reader.size else _logical_mismatch(writer, reader)
    return ""


def _logical_mismatch(writer: avro.PrimitiveType | avro.FixedType, reader: avro.PrimitiveType | avro.FixedType) -> str:
    ours, theirs = reader.logical, writer.logical
    if ours is None or theirs is None or ours == theirs:
        return ""
    if "decimal" in (ours.name, theirs.name):
        return "precision and scale must be equal"
    if {ours.name, theirs.name} <= {"uuid", "duration"}:
        return ""
    if ours.name.removeprefix("local-") == theirs.name.removeprefix("local-"):
        return ""
    return "the bytes would mean other times"


class _PlanTooLargeError(Exception):
    """Not a SchemaError, which would be taken for a branch that does not match."""


class _Resolver:
    def __init__(self, plan: DecodePlan) -> None:
        self._plan = plan

    def value(self, writer: AvroSchema, reader: AvroSchema, column: int, path: str) -> int:
        """Add the nodes that decode the writer's value into a column; return the index of the last."""
        if isinstance(writer, avro.UnionType):
            return self._from_union(writer, reader, column, path)
        if isinstance(reader, avro.UnionType):
            return self._into_union(writer, reader, column, path)
        if reason := _mismatch(writer, reader):
            raise self._error(writer, reader, path, reason)
        if isinstance(writer, avro.RecordType) and isinstance(reader, avro.RecordType):
            return self._record(writer, reader, column, path)
        if isinstance(writer, avro.ArrayType) and isinstance(reader, avro.ArrayType):
            (items,) = self._plan.columns[column].children
            child = self.value(writer.items, reader.items, items, f"{path}[]")
            return self._add(Op.ARRAY, column, path, least_bytes(writer.items), [child])
        if isinstance(writer, avro.MapType) and isinstance(reader, avro.MapType):
            (entries,) = self._plan.columns[column].children
            child = self.value(writer.values, reader.values, self._plan.columns[entries].children[1], f"{path}{{}}")
            return self._add(Op.MAP, column, path, 1 + least_bytes(writer.values), [child])
        if isinstance(writer, avro.EnumType) and isinstance(reader, avro.EnumType):
            return self._enum(writer, reader, column, path)
        return self._simple(writer, reader, column, path)

    def _simple(self, writer: AvroSchema, reader: AvroSchema, column: int, path: str) -> int:
        assert isinstance(reader, avro.PrimitiveType | avro.FixedType)
        if reader.logical is not None and reader.logical.name == "decimal":
            limit = self._plan.add_constant(decimal_limit(reader.logical.precision))
            if isinstance(reader, avro.FixedType):
                return self._add(Op.DECIMAL_FIXED, column, path, reader.size, [limit])
            return self._add(Op.DECIMAL_BYTES, column, path, 0, [limit])
        if isinstance(reader, avro.FixedType):
            return self._add(Op.FIXED, column, path, reader.size)
        return self._add(_PROMOTIONS[writer.kind, reader.kind], column, path, int(writer.kind == "int"))

    def _from_union(self, writer: avro.UnionType, reader: AvroSchema, column: int, path: str) -> int:
        children, errors = [], {}
        for index, branch in enumerate(writer.branches):
            try:
                children.append(self.value(branch, reader, column, path))
            except SchemaError as error:
                errors[index] = error
                children.append(self._add(Op.FAIL, column, path))
        # A union of null and one type is useless without the type: better to know it now than for each value.
        if writer.members and errors.keys() >= set(writer.members):
            raise errors[writer.members[0]]
        return self._add(Op.UNION, column, path, children=children)

    def _into_union(self, writer: AvroSchema, reader: avro.UnionType, column: int, path: str) -> int:
        index = self._branch(writer, reader, path)
        branch = reader.branches[index]
        if branch.kind == "null" or len(reader.members) == 1:
            return self.value(writer, branch, column, path)
        member = reader.members.index(index)
        child = self.value(writer, branch, self._plan.columns[column].children[member], path)
        return self._add(Op.MEMBER, column, path, member, [child])

    def _branch(self, writer: AvroSchema, reader: avro.UnionType, path: str) -> int:
        matching = [index for index, branch in enumerate(reader.branches) if not _mismatch(writer, branch)]
        same_kind = [index for index in matching if reader.branches[index].kind == writer.kind]
        for index in same_kind:
            if getattr(reader.branches[index], "name", "") == getattr(writer, "name", ""):
                return index
        if same_kind:
            return same_kind[0]
        if not matching:
            raise self._error(writer, reader, path, "no branch of the reader's matches")
        return matching[0]

    def _record(self, writer: avro.RecordType, reader: avro.RecordType, column: int, path: str) -> int:
        columns = dict(zip((entry.name for entry in reader.fields), self._plan.columns[column].children, strict=True))
        missing = {entry.name: entry for entry in reader.fields}
        by_alias = {alias: entry.name for entry in reversed(reader.fields) for alias in entry.aliases}
        children = []
        for entry in writer.fields:
            target = missing.get(entry.name if entry.name in columns else by_alias.get(entry.name, ""))
            if target is None:
                children.append(self._skip(entry.type, join_path(path, entry.name)))
            else:
                del missing[target.name]
                inner = join_path(path, target.name)
                children.append(self.value(entry.type, target.type, columns[target.name], inner))
        for name, target in missing.items():
            if isinstance(target.default, avro.NoDefault):
                raise SchemaError(
                    f"field {join_path(path, name)} of the reader's schema is not in the writer's and has no default; "
                    f"add a default"
                )
            constant = self._plan.add_constant(encode_default(target.type, target.default))
            child = self.value(target.type, target.type, columns[name], join_path(path, name))
            children.append(self._add(Op.CONSTANT, columns[name], join_path(path, name), constant, [child]))
        return self._add(Op.RECORD, column, path, children=children)

    def _enum(self, writer: avro.EnumType, reader: avro.EnumType, column: int, path: str) -> int:
        constants = []
        for symbol in writer.symbols:
            text = symbol if symbol in reader.symbols else reader.default
            constants.append(-1 if text is None else self._plan.add_constant(text.encode()))
        return self._add(Op.ENUM, column, path, 0, constants)

    def _skip(self, writer: AvroSchema, path: str) -> int:
        if isinstance(writer, avro.RecordType):
            children = [self._skip(entry.type, join_path(path, entry.name)) for entry in writer.fields]
            return self._add(Op.SKIP_RECORD, -1, path, children=children)
        if isinstance(writer, avro.UnionType):
            return self._add(Op.SKIP_UNION, -1, path, children=[self._skip(b, path) for b in writer.branches])
        if isinstance(writer, avro.ArrayType):
            child = self._skip(writer.items, f"{path}[]")
            return self._add(Op.SKIP_ARRAY, -1, path, least_bytes(writer.items), [child])
        if isinstance(writer, avro.MapType):
            child = self._skip(writer.values, f"{path}{{}}")
            return self._add(Op.SKIP_MAP, -1, path, 1 + least_bytes(writer.values), [child])
        if isinstance(writer, avro.FixedType):
            return self._add(Op.SKIP_FIXED, -1, path, writer.size)
        if writer.kind in _FIXED_BYTES:
            return self._add(Op.SKIP_FIXED, -1, path, _FIXED_BYTES[writer.kind])
        return self._add(Op.SKIP_BYTES if writer.kind in ("bytes", "string") else Op.SKIP_LONG, -1, path)

    def _add(self, op: Op, column: int, path: str, size: int = 0, children: Sequence[int] = ()) -> int:
        if len(self._plan.nodes) >= NODES_MAX:
            raise _PlanTooLargeError
        return self._plan.add_node(op, column, path, size, children)

    def _error(self, writer: AvroSchema, reader: AvroSchema, path: str, reason: str) -> SchemaError:
        where = f"field {path}: " if path else ""
        ours, theirs = shorten(describe(reader)), shorten(describe(writer))
        return SchemaError(f"{where}the writer's {theirs} cannot be read as {ours}: {reason}")
