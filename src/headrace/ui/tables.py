"""Tables that are paged, sorted and searched on the server: the browser only gets the rows it shows.

    columns = [Column("topic", "Topic", kind="link"), Column("size", "Size", kind="number")]
    fetch = item_rows(topics, make_row, keys=…)
    table = ServerTable("Topics", columns, fetch, row_key="topic", empty="No topics yet. …")
    page.live(table.refresh)

`item_rows` is for items in memory. Any other function that returns query.count rows from query.first on will do.

A row is a dict of formatted texts. Kinds of columns:

    mono, fixed   monospaced; "fixed" is never wrapped
    link          URL in `<name>_href`
    state         symbol in `<name>_mark`, so that nothing is shown by colour alone; good, warn or bad in `<name>_tone`
    action        a button labelled with the value, none if it is empty; a click calls the handler set by `on_action`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from nicegui import events, ui

from headrace.ui.elements import EmptyNote, Problem, TextField

PAGE_ROWS = 25
PAGE_ROWS_CHOICES = (10, 25, 50, 100)
PAGE_ROWS_MAX = 100
SEARCH_CHARS_MAX = 200

Row = dict[str, Any]
T = TypeVar("T")
SortKeys: TypeAlias = Mapping[str, Callable[[T], Any]]
"""Functions from an item to a sortable value, by column."""
Kind = Literal["text", "number", "link", "state", "action", "mono", "fixed"]


@dataclass(slots=True, frozen=True)
class Column:
    name: str
    label: str
    kind: Kind = "text"
    sortable: bool = False
    wide: bool = False
    """Takes the width that the other columns leave."""


@dataclass(slots=True)
class Query:
    """The rows that the browser requests."""

    first: int = 0
    count: int = PAGE_ROWS
    sort_by: str | None = None
    descending: bool = False
    search: str = ""


class Rows(NamedTuple):
    """The rows of a page, and the number of rows on all pages."""

    rows: list[Row]
    total: int
    problem: str | None = None
    """An error to show above the table."""


def paged(
    query: Query,
    items: Iterable[T],
    make_row: Callable[[T], Row],
    *,
    keys: SortKeys[T] | None = None,
    text: Callable[[T], str] | None = None,
) -> Rows:
    """Return one page of items: filtered by `text`, sorted by one of `keys`, and only then turned into rows."""
    selected = list(items)
    if query.search and text is not None:
        search = query.search.lower()
        selected = [item for item in selected if search in text(item).lower()]
    if query.sort_by is not None and keys is not None and query.sort_by in keys:
        selected.sort(key=keys[query.sort_by], reverse=query.descending)
    return Rows([make_row(item) for item in selected[query.first : query.first + query.count]], len(selected))


def item_rows(
    items: Callable[[], Iterable[T]],
    make_row: Callable[[T], Row],
    *,
    keys: SortKeys[T] | None = None,
    text: Callable[[T], str] | None = None,
) -> Callable[[Query], Rows]:
    """Return a function that fetches the rows of a table from the current `items`; the others as in `paged`."""
    return lambda query: paged(query, items(), make_row, keys=keys, text=text)


class ServerTable:
    """A table on a page."""

    def __init__(
        self,
        label: str,
        columns: Sequence[Column],
        fetch: Callable[[Query], Rows],
        *,
        row_key: str,
        empty: str,
        search: str | None = None,
        sort_by: str | None = None,
        descending: bool = False,
        page_rows: int = PAGE_ROWS,
    ) -> None:
        """`search` names the rows in the label of the search field; `empty` is shown while there are no rows."""
        self._fetch = fetch
        self._empty_text = empty
        self._query = Query(count=page_rows, sort_by=sort_by, descending=descending)
        self._actions: dict[str, Callable[[Row], object]] = {}
        with ui.element("div").classes("hr-table-box"):
            self._search = self._search_field(search) if search else None
            self._problem = Problem()
            self._empty = EmptyNote(empty)
            self._table = ui.table(
                columns=[_definition(column) for column in columns],
                rows=[],
                row_key=row_key,
                pagination={
                    "rowsPerPage": page_rows,
                    "page": 1,
                    "rowsNumber": 0,
                    "sortBy": sort_by,
                    "descending": descending,
                },
            ).classes("hr-table")
        self._table.props('flat dense binary-state-sort rows-per-page-label="Rows per page"')
        self._table.props(f':rows-per-page-options="{list(PAGE_ROWS_CHOICES)}"')
        self._table.props(f'role="group" aria-label="{label}"')
        self._table.add_slot("header-cell", _HEADER)
        for column in columns:
            self._table.add_slot(f"body-cell-{column.name}", _CELLS[column.kind].replace("NAME", column.name))
        self._table.on("request", self._on_request, ["pagination"])
        self._table.on("act", self._on_act)

    def _search_field(self, label: str) -> TextField:
        field = TextField(f"Search {label}", kind="search", on_change=self._on_search)
        field.box.classes("hr-search")
        return field

    @property
    def query(self) -> Query:
        return self._query

    def on_action(self, name: str, handler: Callable[[Row], object]) -> None:
        """Set the handler of an "action" column; it may be a coroutine function."""
        self._actions[name] = handler

    def refresh(self) -> None:
        """Fetch the rows again; send them to the browser if they have changed."""
        rows = self._fetch(self._query)
        if self._query.first >= rows.total > 0:  # rows were removed: go to the last page
            self._query.first = (rows.total - 1) // self._query.count * self._query.count
            rows = self._fetch(self._query)
        self._problem.set(rows.problem)
        self._empty.show(self._empty_note())
        self._empty.set_visibility(not rows.total)
        self._table.set_visibility(bool(rows.total))
        pagination = self._pagination(rows.total)
        props = self._table.props
        props["hide-bottom"] = rows.total <= PAGE_ROWS_CHOICES[0]
        if props["rows"] != rows.rows or props["pagination"] != pagination:
            props["rows"], props["pagination"] = rows.rows, pagination
            self._table.update()

    def _pagination(self, total: int) -> dict[str, Any]:
        query = self._query
        return {
            "page": query.first // query.count + 1,
            "rowsPerPage": query.count,
            "rowsNumber": total,
            "sortBy": query.sort_by,
            "descending": query.descending,
        }

    def _empty_note(self) -> str:
        if self._query.search:
            return f"No match for {self._query.search!r}. Clear the search field to see all rows."
        return self._empty_text

    def _on_search(self) -> None:
        assert self._search is not None
        self._query.search = self._search.value[:SEARCH_CHARS_MAX].strip()
        self._query.first = 0
        self.refresh()

    def _on_request(self, event: events.GenericEventArguments) -> None:
        """Handle a change of page or order. Values from the browser are not trusted."""
        pagination = event.args["pagination"] if isinstance(event.args, dict) else event.args
        count = min(max(1, _number(pagination.get("rowsPerPage"), PAGE_ROWS)), PAGE_ROWS_MAX)
        sort_by = pagination.get("sortBy")
        self._query.count = count
        self._query.first = (max(1, _number(pagination.get("page"), 1)) - 1) * count
        self._query.sort_by = sort_by if isinstance(sort_by, str) else None
        self._query.descending = bool(pagination.get("descending"))
        self.refresh()

    async def _on_act(self, event: events.GenericEventArguments) -> None:
        name, key = event.args
        row_key = self._table.props["row-key"]
        row = next((row for row in self._table.props["rows"] if row.get(row_key) == key), None)
        handler = self._actions.get(name)
        if row is not None and handler is not None:
            result = handler(row)
            if hasattr(result, "__await__"):
                await result


def _number(value: object, default: int) -> int:
    return int(value) if isinstance(value, int | float) else default


def _definition(column: Column) -> dict[str, Any]:
    align = "right" if column.kind == "number" else "left"
    return {
        "name": column.name,
        "label": column.label,
        "field": column.name,
        "sortable": column.sortable,
        "align": align,
        "headerStyle": "width: 50%" if column.wide else "",
    }


# A click on the cell sorts; the button in it is for keyboards.
_HEADER = """
<q-th :props="props" scope="col">
  <button v-if="props.col.sortable" type="button" class="hr-sort">{{ props.col.label }}</button>
  <span v-else>{{ props.col.label }}</span>
</q-th>
"""
_CELLS: dict[Kind, str] = {
    "text": '<q-td :props="props">{{ props.value }}</q-td>',
    "number": '<q-td :props="props" class="hr-number">{{ props.value }}</q-td>',
    "mono": '<q-td :props="props" class="hr-mono">{{ props.value }}</q-td>',
    "fixed": '<q-td :props="props" class="hr-mono hr-fixed">{{ props.value }}</q-td>',
    "link": '<q-td :props="props"><a :href="props.row.NAME_href">{{ props.value }}</a></q-td>',
    "state": (
        '<q-td :props="props"><span :class="\'hr-state hr-\' + props.row.NAME_tone">'
        '<span aria-hidden="true">{{ props.row.NAME_mark }}</span> {{ props.value }}</span></q-td>'
    ),
    "action": (
        '<q-td :props="props"><button v-if="props.value" type="button" class="hr-button" '
        "@click=\"$parent.$emit('act', 'NAME', props.key)\">{{ props.value }}</button></q-td>"
    ),
}
