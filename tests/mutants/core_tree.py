"""Every mutant of the core, found by walking its syntax trees: guards dropped, effects dropped, boundaries
moved.  Nothing is picked by hand.  Left out are words for people (reasons, alarms), which no rule reads, and the
registry's effects, which are hints.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
from attrs import frozen

from lorafsm import records
from lorafsm.engine import records as agent_records

ROOT = Path(__file__).parents[2]
POLICIES = ("publisher", "reclaimer", "repairer")
SKIPPED = {"engine.invariants", "engine.orders", "engine.actions", "engine.lifecycle"}
"""What is judged by them, and what holds no rule: forms and names."""
WORDS = {"reason", "detail", "waits_for", "failure", "field"}
"""Arguments that people read."""
BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
RECORDS = {
    name: [field.name for field in attrs.fields(kind)]
    for module in (records, agent_records)
    for name, kind in vars(module).items()
    if attrs.has(kind)
}


@frozen
class CoreMutant:
    """One change of one function; `change` and `node` say which, to `mutated`."""

    module: str  # below lorafsm
    function: str
    kind: str  # drop guard, negate guard, drop effect, boundary
    text: str  # what is changed, as it is written
    again: int  # the how many'th of these in the function
    node: int
    change: str

    @property
    def id(self) -> str:
        """A name that edits elsewhere leave as it is."""
        again = f" ({self.again})" if self.again > 1 else ""
        return f"{self.module}:{self.function}: {self.kind}: {self.text}{again}"


def modules() -> dict[str, Path]:
    """The modules that are mutated, by their name below lorafsm."""
    found = {}
    for folder in ("registry", "engine"):
        for path in sorted((ROOT / "lorafsm" / folder).glob("*.py")):
            found[f"{folder}.{path.stem}"] = path
    found |= {name: ROOT / "lorafsm" / f"{name}.py" for name in POLICIES}
    return {name: path for name, path in found.items() if name not in SKIPPED and not name.endswith("__init__")}


def core_mutants() -> list[CoreMutant]:
    """All of them, in the order of modules and lines."""
    return [mutant for name, path in modules().items() for mutant in mutants_of(name, path.read_text())]


def mutants_of(module: str, source: str) -> list[CoreMutant]:
    """The mutants of one module."""
    found, seen = [], Counter[str]()
    for function, place in _functions(_numbered(source)):
        for node, kind, change, text in _sites(place):
            mutant = CoreMutant(module, function, kind, text, 1, node, change)
            seen[mutant.id] += 1
            found.append(attrs.evolve(mutant, again=seen[mutant.id]))
    return found


def mutated(source: str, mutant: CoreMutant) -> ast.Module:
    """The module's tree with this one change."""
    tree = _Change(mutant).visit(_numbered(source))
    return ast.fix_missing_locations(tree)


def _numbered(source: str) -> ast.Module:
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        node.number = number  # type: ignore[attr-defined]
    return tree


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{part.name}", part) for part in node.body if isinstance(part, ast.FunctionDef))


Site = tuple[int, str, str, str]


def _sites(function: ast.FunctionDef) -> Iterator[Site]:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    for statement in body:
        yield from _of(statement)


def _of(node: ast.AST) -> Iterator[Site]:
    """Every site in a node, from the outside in."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.FunctionDef):
        return
    if isinstance(node, ast.AnnAssign):
        yield from _of(node.value) if node.value is not None else ()
        return
    if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or isinstance(node, ast.AugAssign):
        yield _site(node, "drop effect", "pass")
    if isinstance(node, ast.Call):
        yield from _of_call(node)
        return
    if isinstance(node, ast.IfExp) and _is_text(node.body) and _is_text(node.orelse):
        return
    if isinstance(node, ast.If | ast.IfExp):
        yield _site(node.test, "drop guard", "never")
        yield from _of_condition(node.test, dropped=True)
        yield from _children(node, but=node.test)
        return
    if isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield _site(test, "drop guard", "always")
            yield from _of_condition(test, dropped=True)
        yield from (site for part in (node.target, node.iter) for site in _of(part))
        return
    if isinstance(node, ast.match_case) and node.guard is not None:
        yield _site(node.guard, "drop guard", "always")
        yield from _of_condition(node.guard, dropped=True)
        yield from _children(node, but=node.guard)
        return
    if isinstance(node, ast.BoolOp | ast.Compare):
        yield from _of_condition(node)
        return
    if isinstance(node, ast.BinOp):
        yield _site(node, "drop effect", "left")
    if isinstance(node, ast.Tuple) and any(isinstance(part, ast.Starred) for part in node.elts):
        for index, part in enumerate(node.elts):
            yield _site(node, "drop effect", f"element {index}", part)
    yield from _children(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _children(node: ast.AST, but: ast.AST | None = None) -> Iterator[Site]:
    for child in ast.iter_child_nodes(node):
        if child is not but:
            yield from _of(child)


def _of_condition(node: ast.AST, *, dropped: bool = False) -> Iterator[Site]:
    """Each operand is dropped, each boundary moved, and each leaf negated that is not `dropped` by itself.

    Where dropping a guard can be told, the guard held the other way, and there its negation does just what dropping it
    does: whoever sees the one sees the other, so only the one is asked about.
    """
    if isinstance(node, ast.BoolOp):
        for index, operand in enumerate(node.values):
            yield _site(node, "drop guard", f"operand {index}", operand)
            yield from _of_condition(operand, dropped=True)
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and isinstance(node.operand, ast.BoolOp):
        yield from _of_condition(node.operand)
        return
    if not dropped:
        yield _site(node, "negate guard", "not")
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            if type(operator) in BOUNDARIES:
                yield _site(node, "boundary", f"boundary {index}")
            if len(node.ops) > 1:
                yield _site(node, "drop guard", f"link {index}", node.comparators[index])
    yield from _children(node)


def _of_call(node: ast.Call) -> Iterator[Site]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if name == "Alarm":
        return
    if name == "evolve":
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in WORDS:
                yield _site(node, "drop effect", f"keyword {keyword.arg}", keyword)
    if method in ("set", "delete", "append", "remove") and node.args and not isinstance(node.func, ast.Name):
        yield _site(node, "drop effect", "receiver")
    if name in ("max", "min") and len(node.args) > 1:
        for index, argument in enumerate(node.args):
            yield _site(node, "drop effect", f"only {index}", node, f" -> {ast.unparse(argument)}")
    if name == "AgentStep" and len(node.args) > 2:
        yield _site(node, "drop effect", "actions", node.args[2])
    if name in RECORDS:
        yield from _of_record(node, RECORDS[name])
    # A step's effects are hints (wake-ups, alarms): whoever is woken late finds the same orders.
    words = {"refuse": 2, "Step": 2, "Refusal": 1, "Refused": 1}.get(name)
    for index, argument in enumerate(node.args):
        if index != words:
            yield from _of(argument)
    for keyword in node.keywords:
        if keyword.arg not in WORDS:
            yield from _of(keyword.value)
    yield from _of(node.func)


def _of_record(node: ast.Call, fields: list[str]) -> Iterator[Site]:
    """A record that is copied from another one field by field: each field that is not copied is an effect."""
    copied = Counter(
        part.value.id
        for part, name in zip(node.args, fields, strict=False)
        if isinstance(part, ast.Attribute) and part.attr == name and isinstance(part.value, ast.Name)
    )
    if copied:
        source = copied.most_common(1)[0][0]
        for index, part in enumerate(node.args):
            if not (isinstance(part, ast.Attribute) and part.attr == fields[index]):
                yield _site(node, "drop effect", f"field {index} {source}.{fields[index]}", part)


def _site(node: ast.AST, kind: str, change: str, shown: ast.AST | None = None, more: str = "") -> Site:
    text = ast.unparse(shown if shown is not None else node).replace("\n", " ") + more
    return node.number, kind, change, text if len(text) <= 90 else f"{text[:87]}..."  # type: ignore[attr-defined]


class _Change(ast.NodeTransformer):
    def __init__(self, mutant: CoreMutant) -> None:
        self.mutant = mutant

    def visit(self, node: ast.AST) -> ast.AST:
        if getattr(node, "number", None) == self.mutant.node:
            return self._changed(node)
        return self.generic_visit(node)

    def _changed(self, node: ast.AST) -> ast.AST:
        change, _, which = self.mutant.change.partition(" ")
        index = int(which.split()[0]) if which[:1].isdigit() else 0
        match change:
            case "pass":
                return ast.Pass()
            case "never":  # what is asked is asked: a name that it binds is bound
                return ast.BoolOp(ast.And(), [node, ast.Constant(False)])  # type: ignore[list-item]
            case "always":
                return ast.BoolOp(ast.Or(), [node, ast.Constant(True)])  # type: ignore[list-item]
            case "not":
                return ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]
            case "operand":
                assert isinstance(node, ast.BoolOp)
                rest = [part for place, part in enumerate(node.values) if place != index]
                return rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            case "boundary":
                assert isinstance(node, ast.Compare)
                node.ops[index] = BOUNDARIES[type(node.ops[index])]()
            case "link":
                assert isinstance(node, ast.Compare)
                del node.ops[index], node.comparators[index]
            case "left":
                assert isinstance(node, ast.BinOp)
                return node.left
            case "element":
                assert isinstance(node, ast.Tuple)
                del node.elts[index]
            case _:
                return self._changed_call(node, change, which, index)
        return node

    @staticmethod
    def _changed_call(node: ast.AST, change: str, which: str, index: int) -> ast.AST:
        assert isinstance(node, ast.Call)
        if change == "keyword":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != which]
        elif change == "receiver":
            assert isinstance(node.func, ast.Attribute)
            return node.func.value
        elif change == "only":
            return node.args[index]
        elif change == "actions":
            node.args[2] = ast.Tuple([], ast.Load())
        elif change == "field":
            source, _, name = which.split()[1].partition(".")
            node.args[index] = ast.Attribute(ast.Name(source, ast.Load()), name, ast.Load())
        else:
            raise ValueError(f"no such change: {change}")
        return node
