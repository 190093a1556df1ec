"""How JSON values become columns, as a plan for the kernel.

    JsonSchema → plan_decoding → DecodePlan → _json.PlanDecoder
    writer's schema, reader's schema → check_readable → SchemaError if no value can be read

A value is decoded by the reader's schema alone, because JSON names its properties. The writer's schema tells at once
what would fail for every value: types that never match, required properties that the writer does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import SchemaError
from headrace.schema import json_types
from headrace.schema._json.layout import MISSING_ERROR, MISSING_NULL, NULLABLE, PLAIN_NAMES, Op
from headrace.schema._plan.layout import decimal_limit
from headrace.schema.codec import DecodePlan, join_path
from headrace.schema.json_types import TOKENS, JsonSchema, arrow_type, describe, json_bytes

_SCALAR_OPS = {
    "null": Op.NULL,
    "boolean": Op.BOOLEAN,
    "integer": Op.INTEGER,
    "number": Op.NUMBER,
    "string": Op.STRING,
    "bytes": Op.BYTES,
}


def plan_decoding(schema: JsonSchema) -> DecodePlan:
    """Return the plan to decode values of a schema."""
    plan = DecodePlan(arrow_type(schema))
    planner = _Planner(plan)
    plan.add_node(Op.ROOT, 0, "", children=[planner.value(schema, 0, "")])
    return plan


def token_bits(tokens: Sequence[str]) -> int:
    """Return a bit for each token, as the kernel checks them."""
    return sum(1 << TOKENS.index(token) for token in tokens)


class _Planner:
    def __init__(self, plan: DecodePlan) -> None:
        self._plan = plan

    def value(self, schema: JsonSchema, column: int, path: str) -> int:
        """Add the nodes that decode a value into a column; return the index of the last."""
        null = NULLABLE if schema.nullable else 0
        if isinstance(schema, json_types.ScalarType):
            if schema.kind == "decimal":
                limit = self._plan.add_constant(decimal_limit(schema.data_type.precision))
                return self._plan.add_node(Op.DECIMAL, column, path, schema.data_type.scale << 1 | null, [limit])
            return self._plan.add_node(_SCALAR_OPS[schema.kind], column, path, null)
        if isinstance(schema, json_types.TextType):
            return self._plan.add_node(Op.TEXT, column, path, token_bits(schema.tokens) << 1 | null)
        if isinstance(schema, json_types.ObjectType):
            return self._object(schema, column, path)
        children = self._plan.columns[column].children
        if isinstance(schema, json_types.ArrayType):
            return self._plan.add_node(
                Op.ARRAY, column, path, null, [self.value(schema.items, children[0], f"{path}[]")]
            )
        if isinstance(schema, json_types.MapType):
            values = self._plan.columns[children[0]].children[1]
            return self._plan.add_node(Op.MAP, column, path, null, [self.value(schema.values, values, f"{path}{{}}")])
        members = dict.fromkeys(TOKENS, -1)
        for i, member in enumerate(schema.members):
            child = self.value(member, children[i], path)
            members[member.token] = self._plan.add_node(Op.MEMBER, column, path, i, [child])
        return self._plan.add_node(Op.UNION, column, path, null, list(members.values()))

    def _object(self, schema: json_types.ObjectType, column: int, path: str) -> int:
        children: list[int] = []
        names = [entry.name.encode() for entry in schema.properties]
        for entry, name, child in zip(schema.properties, names, self._plan.columns[column].children, strict=True):
            node = self.value(entry.type, child, join_path(path, entry.name))
            children += [self._plan.add_constant(name), node, self._missing(entry)]
        is_plain = all(json_bytes(name.decode()) == b'"' + name + b'"' for name in names)
        size = (NULLABLE if schema.nullable else 0) | (PLAIN_NAMES if is_plain else 0)
        return self._plan.add_node(
            Op.OBJECT, column, path, size, [*children, *sorted(range(len(names)), key=names.__getitem__)]
        )

    def _missing(self, entry: json_types.Property) -> int:
        """Return what a property has that is not there: the constant with its default, null, or an error."""
        if not isinstance(entry.default, json_types.NoDefault):
            return self._plan.add_constant(json_bytes(entry.default))
        return MISSING_NULL if not entry.required else MISSING_ERROR


def check_readable(writer: JsonSchema, reader: JsonSchema, path: str = "") -> None:
    """Raise a SchemaError if no value of the writer's schema could be read as the reader's."""
    loose = json_types.TextType | json_types.UnionType
    if isinstance(writer, loose) or isinstance(reader, loose):
        if _tokens(writer).isdisjoint(_tokens(reader)) and not (writer.nullable and reader.nullable):
            raise _unreadable(writer, reader, path)
        return
    if writer.kind == "null" or reader.kind == "null":
        if not (writer.nullable and reader.nullable):
            raise _unreadable(writer, reader, path)
        return
    if writer.token != reader.token:
        raise _unreadable(writer, reader, path)
    if isinstance(writer, json_types.ArrayType) and isinstance(reader, json_types.ArrayType):
        return  # an empty array can be read as any
    if isinstance(writer, json_types.ObjectType) and isinstance(reader, json_types.ObjectType):
        written = {entry.name: entry for entry in writer.properties}
        for entry in reader.properties:
            inner = join_path(path, entry.name)
            if entry.name in written:
                if written[entry.name].required:
                    check_readable(written[entry.name].type, entry.type, inner)
            elif writer.closed and entry.required and isinstance(entry.default, json_types.NoDefault):
                raise SchemaError(
                    f"property {inner} is required by the reader's schema, not allowed by the writer's, "
                    f"and has no default; add a default, or do not require it"
                )


def _tokens(schema: JsonSchema) -> set[str]:
    if isinstance(schema, json_types.TextType):
        return set(schema.tokens)
    if isinstance(schema, json_types.UnionType):
        return {member.token for member in schema.members}
    return {schema.token}


def _unreadable(writer: JsonSchema, reader: JsonSchema, path: str) -> SchemaError:
    where = f"property {path}: " if path else ""
    return SchemaError(f"{where}the writer's {describe(writer)} cannot be read as {describe(reader)}")
