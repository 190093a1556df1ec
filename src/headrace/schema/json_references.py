"""References between JSON schemas: `$ref` to a pointer, an anchor, an `$id`, or the name of another schema.

    text, texts of references by name → load_documents → Documents.resolve($ref, base) → subschema

Nothing is ever fetched: a reference is in the text, in one of the texts given with it, or an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from headrace.errors import SchemaError

TEXT_CHARS_MAX = 4 << 20
NODES_MAX = 1_000_000
"""Objects and lists in the texts of a schema and its references."""
_ROOT_URI = "http://schema.invalid/"
"""The base of a schema without `$id`, so that relative references can be joined; no such host exists."""
_DATA_KEYWORDS = frozenset(("const", "default", "enum", "examples"))


class Documents:
    """A schema and those that it refers to, indexed by `$id`, anchor and name."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.is_modern = _is_modern(root)
        self._by_uri: dict[str, Any] = {}
        self._bases: dict[int, str] = {}  # of objects that declare an `$id`
        self._node_count = 0

    def add(self, document: Any, name: str) -> None:
        """Index a document, under its name and every `$id` in it."""
        base = _joined(_ROOT_URI, name)
        self._by_uri.setdefault(urldefrag(base).url, document)
        id_keyword = "id" if _is_draft4(document) else "$id"
        pending = [(document, base)]
        while pending:
            node, base = pending.pop()
            self._node_count += 1
            if self._node_count > NODES_MAX:
                raise SchemaError(f"JSON schema and its references have more than {NODES_MAX:,} objects and lists")
            if isinstance(node, dict):
                base = self._index(node, base, id_keyword)
                pending.extend(
                    (child, base)
                    for key, child in node.items()
                    if key not in _DATA_KEYWORDS and isinstance(child, dict | list)
                )
            elif isinstance(node, list):
                pending.extend((child, base) for child in node if isinstance(child, dict | list))

    def _index(self, node: dict[str, Any], base: str, id_keyword: str) -> str:
        """Add what a schema says about its own address; return the base of what is inside."""
        declared = node.get(id_keyword)
        if isinstance(declared, str):
            uri = _joined(base, declared)
            if declared.startswith("#"):
                self._by_uri.setdefault(uri, node)  # an anchor, before draft 2019-09
            else:
                base = urldefrag(uri).url
                self._by_uri.setdefault(base, node)
                self._bases[id(node)] = base
        anchor = node.get("$anchor")
        if isinstance(anchor, str):
            self._by_uri.setdefault(f"{urldefrag(base).url}#{anchor}", node)
        return base

    def base_of(self, node: dict[str, Any], base: str) -> str:
        """Return the base for references in a schema inside one with this base."""
        return self._bases.get(id(node), base)

    def resolve(self, reference: str, base: str, path: str) -> tuple[Any, str]:
        """Return the schema that a `$ref` names, and its base."""
        uri = _joined(base, reference)
        document_uri, fragment = urldefrag(uri)
        if uri in self._by_uri:
            return self._by_uri[uri], document_uri
        for known in (document_uri, _joined(_ROOT_URI, urldefrag(reference).url)):
            if known in self._by_uri:
                return self._pointed(self._by_uri[known], fragment, reference, path), known
        raise SchemaError(
            f"unknown $ref {reference!r} at {path or 'the root'} of the JSON schema: "
            f"it is never fetched; add its schema as a reference"
        )

    def _pointed(self, document: Any, fragment: str, reference: str, path: str) -> Any:
        node = document
        for step in fragment.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and len(key) < 10 and int(key) < len(node):
                node = node[int(key)]
            else:
                node = None
                break
        if (fragment and not fragment.startswith("/")) or not isinstance(node, dict | bool):
            raise SchemaError(f"$ref {reference!r} at {path or 'the root'} of the JSON schema names nothing in it")
        return node


def load_documents(text: str, references: Mapping[str, str]) -> tuple[Documents, str]:
    """Parse a schema and its references; return them with the base of the schema."""
    root = _load(text, "JSON schema")
    documents = Documents(root)
    documents.add(root, "")
    for name, reference in references.items():
        documents.add(_load(reference, f"JSON schema {name}, a reference,"), name)
    return documents, documents.base_of(root, _ROOT_URI) if isinstance(root, dict) else _ROOT_URI


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError as error:
        raise SchemaError(f"invalid $ref or $id {reference!r} in a JSON schema: {error}") from None


def _draft(root: Any) -> str:
    draft = root.get("$schema", "") if isinstance(root, dict) else ""
    return draft if isinstance(draft, str) else ""


def _is_modern(root: Any) -> bool:
    """Return whether keywords beside `$ref` count: since draft 2019-09."""
    return "2019-09" in _draft(root) or "2020-12" in _draft(root)


def _is_draft4(root: Any) -> bool:
    return "draft-04" in _draft(root) or "draft-03" in _draft(root)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _load(text: str, what: str) -> Any:
    if len(text) > TEXT_CHARS_MAX:
        raise SchemaError(f"{what} has {len(text):,} characters; at most {TEXT_CHARS_MAX:,} are read")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise SchemaError(f"{what} is nested too deeply; flatten it") from None
    except ValueError as error:
        raise SchemaError(f"{what} is not JSON: {error}") from None
