"""The interpreter for Python blocks of documentation pages. A program, not imported by tests, for any environment.

    a line of JSON: {"page": …, "line": …, "text": …, "fresh": …} → run → a line of JSON: {"error": traceback or null}

All blocks of a page share their names; `fresh` begins a new page. Blocks print to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    names: dict[str, object] = {}
    for line in sys.stdin:
        block = json.loads(line)
        if block["fresh"]:
            names = {"__name__": "__main__"}
        error = None
        try:
            # Preceded by empty lines, so that a traceback has the line of the page.
            exec(compile("\n" * (block["line"] - 1) + block["text"], block["page"], "exec"), names)
        except BaseException:
            error = traceback.format_exc()
        sys.stdout.flush()
        print(json.dumps({"error": error}), file=replies, flush=True)


if __name__ == "__main__":
    main()
