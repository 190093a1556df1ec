"""docs/behaviours.md tells the truth: a row is done when, and only when, a test of `make test` shows it.

The markers are read from the tests' source, not from a pytest run: a run of one file, or on a machine
that skips some, must not make the other tests look missing.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import pytest

PROJECT = Path(__file__).parents[2]
TESTS = PROJECT / "tests"
ROW = re.compile(r"\| ([A-Z]\d\d) \| (\S[^|]*\S) \| (pending|done) \|")
HEAD_OR_RULE = re.compile(r"\| ID \|.*|\|[-|: ]+\|")
WITH_SLOW = "unit"
"""The folder of which `make test` runs everything; of the others it runs what is not slow."""
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
SPARK_FIXTURE = "spark"
"""What depends on it is slow, unless it is marked `every_run`: see tests/spark/conftest.py."""


def check(table: str, tests: Path) -> list[str]:
    """What is wrong between the table and the tests, one sentence each; empty when all is well."""
    rows, complaints = read_table(table)
    shown, complaints_of_tests = read_tests(tests)
    complaints += complaints_of_tests
    known = {row for row, _ in rows}
    for row, count in Counter(row for row, _ in rows).items():
        if count > 1:
            complaints.append(f"{row}: {count} rows have this ID")
    for row, status in rows:
        if status == "done" and row not in shown:
            complaints.append(f"{row}: done, but no test shows it")
        if status == "done" and row in shown and not any(location.is_in_every_run for location in shown[row]):
            where = ", ".join(location.text for location in shown[row])
            complaints.append(f"{row}: done, but shown by slow tests only, which `make test` leaves out: {where}")
        if status == "pending" and row in shown:
            complaints.append(f"{row}: still pending, but shown at {shown[row][0].text}")
    complaints += [
        f"{locations[0].text}: there is no row {row}" for row, locations in shown.items() if row not in known
    ]
    return complaints


def read_table(table: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The (ID, status) of each row, and a complaint for each table line that is not a row."""
    rows, complaints = [], []
    for line in table.splitlines():
        if match := ROW.fullmatch(line):
            rows.append((match[1], match[3]))
        elif line.lstrip().startswith("|") and not HEAD_OR_RULE.fullmatch(line):
            complaints.append(f"not of the form `| P01 | … | pending |`: {line}")
    return rows, complaints


class Location(NamedTuple):
    """Where a test shows a row."""

    text: str
    is_in_every_run: bool


def read_tests(tests: Path) -> tuple[dict[str, list[Location]], list[str]]:
    """Where each ID is shown, and a complaint for each marker that marks nothing."""
    shown: defaultdict[str, list[Location]] = defaultdict(list)
    complaints = []
    for path in sorted(tests.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "behaviour" not in source:
            continue  # parsing all files takes seconds
        tree = ast.parse(source)
        in_force = set()
        for marker, marks, fixtures in markers_on_tests(tree) if path.name.startswith("test_") else ():
            names = [arg.value for arg in marker.args if isinstance(arg, ast.Constant)]
            if names and len(names) == len(marker.args):
                in_force.add(marker.func)
                folder = path.relative_to(tests).parts[0]
                is_slow = "slow" in marks or (SPARK_FIXTURE in fixtures and "every_run" not in marks)
                location = Location(f"{path.relative_to(tests)}:{marker.lineno}", folder == WITH_SLOW or not is_slow)
                for name in names:
                    shown[str(name)].append(location)
        for node in ast.walk(tree):
            if is_mark(node, "behaviour") and node not in in_force:
                assert isinstance(node, ast.Attribute)
                where = f"{path.relative_to(tests)}:{node.lineno}"
                complaints.append(f"{where}: a behaviour marker stands on a test and names its IDs literally")
    return shown, complaints


def markers_on_tests(tree: ast.Module) -> Iterator[tuple[ast.Call, set[str], set[str]]]:
    """Each behaviour marker that stands on a test, with all marks and fixtures of that test."""
    functions = {node.name: node for node in tree.body if isinstance(node, FUNCTION)}
    marks_of_module = marks_in(*(node.value for node in tree.body if is_pytestmark(node)))
    for outer in ast.walk(tree):
        if not isinstance(outer, ast.Module | ast.ClassDef):
            continue
        inherited = marks_of_module | (marks_in(*outer.decorator_list) if isinstance(outer, ast.ClassDef) else set())
        for node in outer.body:
            if not isinstance(node, (*FUNCTION, ast.ClassDef)):
                continue
            is_test = node.name.startswith("Test" if isinstance(node, ast.ClassDef) else "test")
            for decorator in node.decorator_list if is_test else ():
                if isinstance(decorator, ast.Call) and is_mark(decorator.func, "behaviour"):
                    marks = inherited | marks_in(*node.decorator_list)
                    yield decorator, marks, set() if isinstance(node, ast.ClassDef) else fixtures_of(node, functions)


def fixtures_of(test: ast.FunctionDef | ast.AsyncFunctionDef, functions: dict[str, Any]) -> set[str]:
    """The fixtures that a test takes, and those that fixtures of its file take in turn."""
    names: set[str] = set()
    pending = {argument.arg for argument in test.args.args}
    while pending:
        name = pending.pop()
        names.add(name)
        if name in functions:
            pending |= {argument.arg for argument in functions[name].args.args} - names
    return names


def marks_in(*nodes: ast.expr) -> set[str]:
    """The names of all marks in decorators, or in a `pytestmark`; marks of parameters count if all have them."""
    names = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.List | ast.Tuple):
            pending += node.elts
        elif isinstance(node, ast.Call):
            pending.append(node.func)
            if is_mark(node.func, "parametrize"):
                names |= marks_of_all_parameters(node)
        elif isinstance(node, ast.Attribute) and is_mark(node, node.attr):
            names.add(node.attr)
    return names


def marks_of_all_parameters(parametrize: ast.Call) -> set[str]:
    """The marks that each parameter in a literal list has."""
    values = parametrize.args[1] if len(parametrize.args) > 1 else None
    if not isinstance(values, ast.List | ast.Tuple) or not values.elts:
        return set()
    return set.intersection(
        *(
            marks_in(*(keyword.value for keyword in value.keywords if keyword.arg == "marks"))
            if isinstance(value, ast.Call)
            else set()
            for value in values.elts
        )
    )


def is_pytestmark(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]


def is_mark(node: ast.AST, name: str) -> bool:
    """Whether this is the `pytest.mark.NAME` of a marker."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "mark"
    )


def test_the_table_and_the_tests_agree():
    table = (PROJECT / "docs" / "behaviours.md").read_text(encoding="utf-8")
    assert read_table(table)[0], "the table has no rows"
    assert check(table, PROJECT / "tests") == []


# --- the check itself, on planted tables and tests ---

TABLE = "| ID | behaviour | status |\n|---|---|---|\n| P01 | it runs | {P01} |\n| P02 | it stops | {P02} |\n"


@pytest.fixture
def planted(tmp_path):
    """check() on rows P01 and P02 of the given status, and tests/<folder>/<file> of the given source."""

    def run(source: str, file: str = "test_planted.py", folder: str = "deep", **status: str) -> list[str]:
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / file).write_text(source)
        return check(TABLE.format(**{"P01": "pending", "P02": "pending", **status}), tmp_path / "tests")

    return run


MARKED = '@pytest.mark.behaviour("P01")\n'


def test_all_pending_and_no_marker_is_fine(planted):
    assert planted("def test_x(): ...") == []


@pytest.mark.parametrize("test", ["def test_x(): ...", "async def test_x(): ...", "class TestX: ..."])
def test_a_done_row_with_its_test_is_fine(planted, test):
    assert planted(MARKED + test, P01="done") == []


def test_one_test_may_show_several_rows(planted):
    marked = '@pytest.mark.behaviour("P01", "P02")\ndef test_x(): ...'
    assert planted(marked, P01="done", P02="done") == []


def test_a_method_may_carry_the_marker(planted):
    source = "class TestX:\n @pytest.mark.timeout(9)\n @pytest.mark.behaviour('P01')\n def test_y(self): ...\n"
    assert planted(source, P01="done") == []


def test_a_done_row_without_a_test_is_told(planted):
    assert planted("def test_x(): ...", P02="done") == ["P02: done, but no test shows it"]


def test_a_pending_row_with_a_test_is_told(planted):
    assert planted(MARKED + "def test_x(): ...") == ["P01: still pending, but shown at deep/test_planted.py:1"]


def test_an_unknown_id_is_told(planted):
    assert planted('@pytest.mark.behaviour("X99")\ndef test_x(): ...') == [
        "deep/test_planted.py:1: there is no row X99"
    ]


def test_a_duplicate_row_is_told(tmp_path):
    twice = "| P01 | it runs | pending |\n| P01 | it stops | pending |\n"
    assert check(twice, tmp_path) == ["P01: 2 rows have this ID"]


@pytest.mark.parametrize(
    "line",
    ["| P1 | it runs | pending |", "| P01 | it runs | maybe |", "|P01|it runs|done|", "| P01 |  | done |"],
)
def test_a_line_that_is_nearly_a_row_is_told(tmp_path, line):
    (complaint,) = check(line, tmp_path)
    assert complaint.endswith(line)


@pytest.mark.parametrize(
    "source",
    [
        MARKED + "def helper(): ...",
        "@pytest.mark.behaviour\ndef test_x(): ...",
        "@pytest.mark.behaviour()\ndef test_x(): ...",
        "@pytest.mark.behaviour(NAME)\ndef test_x(): ...",
        "pytestmark = pytest.mark.behaviour('P01')",
    ],
)
def test_a_marker_that_marks_nothing_shows_nothing_and_is_told(planted, source):
    complaints = planted(source, P01="done")
    assert "P01: done, but no test shows it" in complaints
    assert any("stands on a test and names its IDs" in complaint for complaint in complaints)


def test_a_marker_in_a_file_pytest_does_not_collect_is_told(planted):
    assert len(planted(MARKED + "def test_x(): ...", file="helpers.py", P01="done")) == 2


SLOW = "@pytest.mark.slow\n"
SHOWN_IN_SPARK = [
    SLOW + MARKED + "def test_x(): ...",
    "pytestmark = pytest.mark.slow\n" + MARKED + "def test_x(): ...",
    "pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]\n" + MARKED + "def test_x(): ...",
    SLOW + "class TestX:\n @pytest.mark.behaviour('P01')\n def test_y(self): ...\n",
    MARKED + "def test_x(spark): ...",
    "@pytest.fixture\ndef stream(spark): ...\n" + MARKED + "def test_x(stream): ...",
    "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.slow)])\n" + MARKED + "def test_x(n): ...",
]


@pytest.mark.parametrize("source", SHOWN_IN_SPARK)
@pytest.mark.parametrize("folder", ["spark", "broker"])
def test_a_row_that_only_slow_tests_show_is_told(planted, source, folder):
    (complaint,) = planted(source, folder=folder, P01="done")
    assert complaint.startswith(f"P01: done, but shown by slow tests only, which `make test` leaves out: {folder}/")


@pytest.mark.parametrize("source", SHOWN_IN_SPARK)
def test_a_slow_test_shows_its_row_where_slow_ones_run(planted, source):
    assert planted(source, folder=WITH_SLOW, P01="done") == []


@pytest.mark.parametrize(
    "other",
    [
        MARKED + "def test_z(): ...",
        "@pytest.mark.every_run\n" + MARKED + "def test_z(spark): ...",
        "@pytest.mark.every_run('headrace')\n" + MARKED + "def test_z(either): ...",
        "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.slow), 2])\n" + MARKED + "def test_z(n): ...",
    ],
)
def test_a_row_that_another_test_shows_in_every_run_is_fine(planted, other):
    assert planted(f"{SHOWN_IN_SPARK[0]}\n{other}", folder="spark", P01="done") == []


def test_make_test_runs_the_slow_tests_of_this_folder_only():
    makefile = (PROJECT / "Makefile").read_text()
    assert 'NOT_SLOW := -m "not slow"\n' in makefile
    runs = [line for line in recipes_of(makefile) if "$(PYTEST)" in line]
    assert folders_of(line for line in runs if "$(NOT_SLOW)" in line) == folders() - {WITH_SLOW}
    assert folders_of(line for line in runs if "$(NOT_SLOW)" not in line) == set()  # unit tests are in variables


def test_every_folder_of_tests_is_in_a_group_of_make_test():
    makefile = (PROJECT / "Makefile").read_text()
    groups = re.search(r"^TEST_GROUPS := (.*)$", makefile, re.MULTILINE)
    assert groups is not None
    assert sorted(groups[1].split()) == sorted(re.findall(r"^test-group-(\S+):$", makefile, re.MULTILINE))
    assert folders_of(recipes_of(makefile)) == folders()


def recipes_of(makefile: str) -> list[str]:
    """Return the lines about the groups of `make test`."""
    return makefile[makefile.index("\ntest-group-") : makefile.index("\ntest-spark:")].splitlines()


def folders() -> set[str]:
    return {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}


def folders_of(lines: Iterable[str]) -> set[str]:
    """Return the folders of tests that lines of the Makefile name."""
    return {folder for line in lines for folder in re.findall(r"tests/(\w+)", line.replace("$(LIVE_VIEW)", "tests/ui"))}
