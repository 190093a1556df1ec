"""The stubs of compiled modules: the modules have their names and signatures, and so has the Python reference."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headrace

PACKAGE = Path(headrace.__file__).parent
# Compiled module → its Python reference.
MODULES = {
    "headrace.wire._kernel": "headrace.wire._reference",
    "headrace.producer._send.compiled": "headrace.producer._send.reference",
    "headrace.schema._avro.compiled": "headrace.schema._avro.reference",
    "headrace.schema._json.compiled": "headrace.schema._json.reference",
    "headrace.schema._protobuf.compiled": "headrace.schema._protobuf.reference",
    "headrace.client._prompt": None,
}


def stub_of(module_name: str) -> ast.Module:
    path = PACKAGE.joinpath(*module_name.split(".")[1:]).with_suffix(".pyi")
    return ast.parse(path.read_text())


def import_compiled(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ImportError:
        pytest.skip("the kernel is not compiled here")


def stubbed_names(stub: ast.Module, reference: str | None) -> set[str]:
    """Return the names that a stub defines, or re-exports from the reference."""
    names = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.module == reference:
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
    return names


def own_names(module: ModuleType) -> set[str]:
    """Return the public names that are defined in a module, or in modules of a package."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and (getattr(value, "__module__", None) or module.__name__).startswith(module.__name__)
    }


def parameters(function: Any) -> list[tuple[str, Any, bool]]:
    """Return name, kind and whether there is a default: compiled functions have no annotations."""
    return [(p.name, p.kind, p.default is not p.empty) for p in inspect.signature(function).parameters.values()]


def constructor_parameters(cls: type) -> list[str]:
    """Return the names of a constructor's parameters; Cython writes them into the docstring: `Name(int a, b=0)`."""
    signature = re.match(rf"{cls.__name__}\((.*)\)\n", cls.__doc__ or "")
    if signature is None:  # no constructor
        return []
    parts = [part.split("=")[0].split()[-1] for part in signature[1].split(", ")]
    return [part for part in parts if part != "*"]


def public_members(cls: type) -> set[str]:
    """Return the names of methods, and of attributes that are properties or slots."""
    return {name for name in vars(cls) if not name.startswith("_") or name == "__await__"}


@pytest.mark.parametrize(("module_name", "reference_name"), MODULES.items())
def test_a_compiled_module_has_the_names_of_its_stub(module_name, reference_name):
    compiled = import_compiled(module_name)
    assert stubbed_names(stub_of(module_name), reference_name) == own_names(compiled)


@pytest.mark.parametrize(("module_name", "reference_name"), [pair for pair in MODULES.items() if pair[1]])
def test_compiled_module_and_reference_have_the_same_signatures(module_name, reference_name):
    compiled, reference = import_compiled(module_name), importlib.import_module(reference_name)
    names = stubbed_names(stub_of(module_name), reference_name)
    assert names == own_names(reference)
    for name in names:
        fast, plain = getattr(compiled, name), getattr(reference, name)
        if not inspect.isclass(fast):
            assert parameters(fast) == parameters(plain), name
            continue
        assert constructor_parameters(fast) == list(inspect.signature(plain).parameters), name
        assert public_members(plain) <= public_members(fast), name
        for method in public_members(plain):
            if inspect.isroutine(getattr(plain, method)) and method != "__await__":  # a slot, without a signature
                assert parameters(getattr(fast, method)) == parameters(getattr(plain, method)), f"{name}.{method}"


def test_the_functions_of_a_stub_have_the_parameters_of_the_compiled_ones():
    name = "headrace.client._prompt"
    compiled = import_compiled(name)
    for node in stub_of(name).body:
        if isinstance(node, ast.FunctionDef):
            assert [argument.arg for argument in node.args.args] == [
                parameter for parameter, _, _ in parameters(getattr(compiled, node.name))
            ]
