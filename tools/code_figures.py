"""Print how large and how tidy src/ is, at several revisions side by side.

python -m tools.code_figures              the working tree
python -m tools.code_figures REV [REV …]  those revisions, and the working tree
"""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = (".py", ".pyx", ".pxd", ".pxi", ".pyi", ".h")
POSITIONAL_PARAMETERS_MAX = 5
# Names that say nothing; docs/glossary.md and CONTRIBUTING.md ask for better ones.
VAGUE_NAMES = ("found", "one", "place", "wanted")
# Documented parts of other libraries whose names begin with an underscore.
PUBLIC_UNDERSCORE_NAMES = (
    "_asdict",
    "_replace",
    "_fields",
    "_make",
    "_exit",
    "_getframe",
    "_jvm",
    "_jsc",
    "_jvmSession",
)


def main() -> None:
    columns: dict[str, dict[str, str]] = {revision: figures(sources_of(revision)) for revision in sys.argv[1:]} | {
        "working tree": figures(sources_of(None))
    }
    rows = next(iter(columns.values()))
    print("| |", " | ".join(columns), "|")
    print("|---|" + "---|" * len(columns))
    for row in rows:
        print(f"| {row} |", " | ".join(column[row] for column in columns.values()), "|")


def sources_of(revision: str | None) -> dict[str, str]:
    """Return path → text of the source files of a revision; None is the working tree."""
    if revision is None:
        paths = git("ls-files", "src").splitlines()
        return {path: (ROOT / path).read_text() for path in paths if is_source(path) and (ROOT / path).exists()}
    paths = git("ls-tree", "-r", "--name-only", revision, "src").splitlines()
    return {path: git("show", f"{revision}:{path}") for path in paths if is_source(path)}


def is_source(path: str) -> bool:
    return path.endswith(SOURCE_SUFFIXES)


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True)


def figures(sources: Mapping[str, str]) -> dict[str, str]:
    lines_of = {path: text.count("\n") for path, text in sources.items()}
    modules = {path: ast.parse(text) for path, text in sources.items() if path.endswith(".py")}
    module_lines = [lines_of[path] for path in modules]
    nodes = [node for module in modules.values() for node in ast.walk(module)]
    return {
        "modules (.py)": str(len(modules)),
        "lines of a module: median, largest": f"{statistics.median(module_lines):.0f}, {max(module_lines)}",
        "modules under 60 lines": str(sum(count < 60 for count in module_lines)),
        "lines of source": f"{sum(lines_of.values()):,}",
        "imports in functions": str(sum(imports_in_functions(module) for module in modules.values())),
        "private attributes of other modules": str(sum(foreign_private(module) for module in modules.values())),
        f"functions with over {POSITIONAL_PARAMETERS_MAX} positional parameters": str(
            sum(is_function(node) and has_many_parameters(node) for node in nodes)
        ),
        "bindings of " + ", ".join(VAGUE_NAMES): str(
            sum(name in VAGUE_NAMES for node in nodes for name in bound(node))
        ),
    }


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def imports_in_functions(module: ast.Module) -> int:
    functions = [node for node in ast.walk(module) if is_function(node)]
    imports = {
        id(node)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return len(imports)


def foreign_private(module: ast.Module) -> int:
    """Count `value._name` where the module itself neither defines nor assigns `_name`."""
    attributes = [node for node in ast.walk(module) if isinstance(node, ast.Attribute)]
    own = {name for node in ast.walk(module) for name in (*bound(node), *defined(node))}
    own.update(node.attr for node in attributes if isinstance(node.ctx, ast.Store))
    own.update(PUBLIC_UNDERSCORE_NAMES)
    return sum(is_private(node.attr) and node.attr not in own and not is_self(node.value) for node in attributes)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_self(node: ast.expr) -> bool:
    """Whether the object is the instance or class itself: subclasses may use what their base defines elsewhere."""
    return (isinstance(node, ast.Name) and node.id in ("self", "cls")) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def has_many_parameters(node: ast.AST) -> bool:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return len([name for name in names if name not in ("self", "cls")]) > POSITIONAL_PARAMETERS_MAX


def defined(node: ast.AST) -> Iterator[str]:
    """Names of functions, classes, slots and fields that a node defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_private(node.value):
        yield node.value  # __slots__


def bound(node: ast.AST) -> Iterator[str]:
    """Names of variables and parameters that a node binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg


if __name__ == "__main__":
    main()
