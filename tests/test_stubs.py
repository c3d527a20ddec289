"""The stubs of the compiled module, ringcomm/_C/*.pyi, beside what is compiled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from documents import ROOT

from ringcomm import _C

STUBS = {"__init__": _C, "plan": _C.plan, "links": _C.links, "streams": _C.streams}
# The tests see by it that the fast functions forget a group.
CALLED_BY_TESTS = {"num_remembered_groups"}


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def declared(of: ast.Module | ast.ClassDef) -> dict[str, ast.stmt]:
    """The names of functions, classes and attributes."""
    found: dict[str, ast.stmt] = {}
    for node in of.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def stub(name: str) -> dict[str, ast.stmt]:
    return declared(ast.parse((ROOT / "ringcomm" / "_C" / f"{name}.pyi").read_text()))


def parameters(function: ast.FunctionDef) -> list[tuple[str, bool]]:
    """The name of each, and whether it has a default."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    first = len(names) - len(function.args.defaults)
    return [(name, at >= first) for at, name in enumerate(names) if name != "self"]


def compiled(function: Any, name: str) -> list[tuple[str, bool]]:
    """The same of a function that is compiled, by its docstring."""
    found = re.search(rf"^{name}\((.*)\) -> ", function.__doc__, re.M)
    assert found, function.__doc__
    (made,) = ast.parse(f"def made({found[1].replace('::', '.')}): ...").body
    assert isinstance(made, ast.FunctionDef)
    return parameters(made)


def functions(names: dict[str, ast.stmt], of: Any) -> Iterator[tuple[str, ast.FunctionDef, Any]]:
    """Those of a module or a class, with what is compiled."""
    for name, node in names.items():
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            yield name, node, getattr(of, name)


@pytest.mark.parametrize("name", STUBS)
def test_the_names_are_those_of_the_module(name: str) -> None:
    submodules = {*STUBS, "testing"} if name == "__init__" else set()
    assert public(vars(STUBS[name])) - submodules == set(stub(name))
    for each, node in stub(name).items():
        if isinstance(node, ast.ClassDef):
            made = getattr(STUBS[name], each)
            assert public(vars(made)) == public(declared(node)), each
            assert set(declared(node)) - set(dir(made)) == set(), each


@pytest.mark.parametrize("name", STUBS)
def test_the_parameters_are_those_of_the_functions(name: str) -> None:
    module, names = STUBS[name], stub(name)
    found = list(functions(names, module))
    for each, node in names.items():
        if isinstance(node, ast.ClassDef):
            made = getattr(module, each)
            of_class = functions(declared(node), made)
            found += [(k, n, f) for k, n, f in of_class if k not in ("__int__", "__index__")]
    assert found
    for each, node, function in found:
        assert parameters(node) == compiled(function, each), each


def used_by_the_package() -> set[str]:
    """Every name and attribute that a module of ringcomm mentions."""
    found: set[str] = set()
    for path in (ROOT / "ringcomm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.name for alias in node.names}
    return found


def is_called(node: ast.stmt) -> bool:
    """Not a class without a constructor, whose objects functions return."""
    return not isinstance(node, ast.ClassDef) or "__init__" in declared(node)


def test_the_package_uses_every_function_of_the_module() -> None:
    """What only tests and benchmarks call is in ringcomm._C.testing, which users do not build."""
    used = used_by_the_package()
    unused = {
        name
        for module in STUBS
        for name, node in stub(module).items()
        if is_called(node) and name not in used
    }
    assert unused == CALLED_BY_TESTS
