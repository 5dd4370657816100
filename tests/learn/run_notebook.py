"""Executes a notebook in this process and writes it back with what its cells printed and gave.

`python run_notebook.py FILE.ipynb`. A cell's streams and the value of its last expression become
outputs in nbformat 4, as Jupyter writes them: https://nbformat.readthedocs.io/en/latest/
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def outputs_of(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell. The value of an expression that ends it is its result."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out, err = io.StringIO(), io.StringIO()
    value = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exec(compile(tree, f"cell {count}", "exec"), names)  # noqa: S102 - the test's own cells
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)  # noqa: S307
    found: list[dict[str, Any]] = [
        {"output_type": "stream", "name": name, "text": text.getvalue().splitlines(keepends=True)}
        for name, text in (("stdout", out), ("stderr", err))
        if text.getvalue()
    ]
    if value is not None:
        found.append({"output_type": "execute_result", "execution_count": count, "metadata": {},
                      "data": {"text/plain": repr(value).splitlines(keepends=True)}})  # fmt: skip
    return found


def main(path: Path) -> None:
    """Every code cell in order, in one namespace."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(codes, 1):
        cell["outputs"] = outputs_of("".join(cell["source"]), names, count)
        cell["execution_count"] = count
    path.write_text(json.dumps(notebook, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
