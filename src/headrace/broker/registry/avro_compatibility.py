"""Which Avro schemas can read what others wrote: the rules of Java's SchemaCompatibility.

    reader field without a default     must be in the writer's record, under its name or an alias
    reader enum without a default      must have all of the writer's symbols
    fixed                              same size
    named types                        same name without the namespace, or an alias of the reader's
    numbers                            int → long → float → double; string ↔ bytes
    writer union                       the reader can read each branch
    reader union                       one branch can read the writer's type

Logical types do not matter here, as in Java; `headrace.schema.avro_resolution` is stricter when it decodes.
"""

from __future__ import annotations

from headrace.broker.registry.formats import Comparison, Incompatibility
from headrace.schema import avro_schema as avro
from headrace.schema.avro_schema import AvroSchema, describe
from headrace.schema.codec import shorten

_READS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}


def find_incompatibilities(reader: AvroSchema, writer: AvroSchema) -> list[Incompatibility]:
    """Return why the reader's schema cannot read what was written with the writer's; empty if it can."""
    checker = _Checker()
    checker.compare(reader, writer, "")
    return checker.comparison.reasons


class _Checker:
    def __init__(self) -> None:
        self.comparison = Comparison()

    def compare(self, reader: AvroSchema, writer: AvroSchema, path: str) -> None:
        self.comparison.count()
        if isinstance(writer, avro.UnionType):
            for index, branch in enumerate(writer.branches):
                self._compare_branch(reader, branch, path, index)
        elif isinstance(reader, avro.UnionType):
            if not any(self._can_read(branch, writer) for branch in reader.branches):
                self._mismatch("MISSING_UNION_BRANCH", reader, writer, path, "no branch of the union reads it")
        elif isinstance(reader, avro.RecordType) and isinstance(writer, avro.RecordType):
            self._compare_records(reader, writer, path)
        elif isinstance(reader, avro.EnumType) and isinstance(writer, avro.EnumType):
            self._compare_enums(reader, writer, path)
        elif isinstance(reader, avro.FixedType) and isinstance(writer, avro.FixedType):
            self._compare_names(reader, writer, path)
            if reader.size != writer.size:
                self._mismatch("FIXED_SIZE_MISMATCH", reader, writer, f"{path}/size", "the sizes differ")
        elif isinstance(reader, avro.ArrayType) and isinstance(writer, avro.ArrayType):
            self.compare(reader.items, writer.items, f"{path}/items")
        elif isinstance(reader, avro.MapType) and isinstance(writer, avro.MapType):
            self.compare(reader.values, writer.values, f"{path}/values")
        elif reader.kind != writer.kind and writer.kind not in _READS.get(reader.kind, ()):
            self._mismatch("TYPE_MISMATCH", reader, writer, path, "these types do not match")

    def _compare_branch(self, reader: AvroSchema, branch: AvroSchema, path: str, index: int) -> None:
        if not isinstance(reader, avro.UnionType):
            self.compare(reader, branch, f"{path}/{index}")
        elif not any(self._can_read(candidate, branch) for candidate in reader.branches):
            self._mismatch(
                "MISSING_UNION_BRANCH", reader, branch, f"{path}/{index}", "no branch of the union reads it; add one"
            )

    def _can_read(self, reader: AvroSchema, writer: AvroSchema) -> bool:
        """Return whether a branch reads a type, without reporting why not."""
        pair = (id(reader), id(writer))
        return self.comparison.attempt(pair, lambda: self.compare(reader, writer, ""))

    def _compare_records(self, reader: avro.RecordType, writer: avro.RecordType, path: str) -> None:
        if not self.comparison.enter((id(reader), id(writer))):
            return
        self._compare_names(reader, writer, path)
        fields = {field.name: field for field in writer.fields}
        for index, field in enumerate(reader.fields):
            written = _find_field(field, fields)
            if written is not None:
                self.compare(field.type, written.type, f"{path}/fields/{index}/type")
            elif isinstance(field.default, avro.NoDefault):
                self.comparison.add(
                    "READER_FIELD_MISSING_DEFAULT_VALUE",
                    f"{path}/fields/{index}",
                    f"field '{field.name}' of {{reader}} has no default and is not in {{writer}}; give it a default",
                )

    def _compare_enums(self, reader: avro.EnumType, writer: avro.EnumType, path: str) -> None:
        self._compare_names(reader, writer, path)
        missing = [symbol for symbol in writer.symbols if symbol not in set(reader.symbols)]
        if missing and reader.default is None:
            self.comparison.add(
                "MISSING_ENUM_SYMBOLS",
                f"{path}/symbols",
                f"enum {reader.name} of {{reader}} lacks the symbols {shorten(', '.join(missing))} of {{writer}}; add "
                f"them, or a default",
            )

    def _compare_names(
        self,
        reader: avro.RecordType | avro.EnumType | avro.FixedType,
        writer: avro.RecordType | avro.EnumType | avro.FixedType,
        path: str,
    ) -> None:
        if _short(reader.name) != _short(writer.name) and writer.name not in reader.aliases:
            self._mismatch(
                "NAME_MISMATCH", reader, writer, f"{path}/name", f"the names differ; add {writer.name} as alias"
            )

    def _mismatch(self, kind: str, reader: AvroSchema, writer: AvroSchema, path: str, reason: str) -> None:
        ours, theirs = shorten(describe(reader)), shorten(describe(writer))
        self.comparison.add(kind, path, f"{{reader}} has {ours}, {{writer}} has {theirs}: {reason}")


def _find_field(field: avro.RecordField, fields: dict[str, avro.RecordField]) -> avro.RecordField | None:
    names = (field.name, *field.aliases)
    return next((fields[name] for name in names if name in fields), None)


def _short(name: str) -> str:
    return name.rpartition(".")[2]
