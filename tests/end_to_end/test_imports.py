"""What no linter says of modules: none is in a circle, and none states a constant twice."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import autotune

PACKAGE = Path(autotune.__file__).parent


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_no_module_is_imported_by_what_it_imports() -> None:
    """In functions and for types alone counts too: two modules that need one another are one."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        reads = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
            reads |= inside
            if node.module in known and len(inside) < len(node.names):
                reads.add(node.module)
        graph[name] = reads - {name}
    assert len(graph) > 100
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise AssertionError(circle) from None


def test_no_module_states_a_constant_twice() -> None:
    twice = []
    for name, path in modules().items():
        told: set[str] = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for each in (x for target in targets for x in ast.walk(target)):
                if isinstance(each, ast.Name):
                    twice += [f"{name}.{each.id}"] if each.id in told else []
                    told.add(each.id)
    assert twice == []
