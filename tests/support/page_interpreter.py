"""The interpreter that the Python of pages is run in. Not imported by tests: it is a program, on any environment.

    a line of JSON: {"page": …, "line": …, "text": …, "fresh": …} → run → a line of JSON: {"error": traceback or null}

All blocks of a page share their names; `fresh` begins a new page. What a block prints goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    names: dict[str, object] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["fresh"]:
            names = {"__name__": "__main__"}
        error = None
        try:
            # Empty lines before it: a traceback then names the line of the page.
            exec(compile("\n" * (asked["line"] - 1) + asked["text"], asked["page"], "exec"), names)
        except BaseException:
            error = traceback.format_exc()
        sys.stdout.flush()
        print(json.dumps({"error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main()
