"""Every mutant of the specification, found by reading its definitions: what an action may reach is damaged once.

Each conjunct or disjunct that is a guard is dropped, each primed effect and each EXCEPT is dropped, each boundary is
moved, each condition of IF, CASE and a filter is dropped.  A guard is not negated besides: where dropping it can be
told it was false, and there its negation does the same.  The mutants of a module live side by side in one text:
`mutant` is a variable that says which of them this behaviour runs, so that TLC judges many of them at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from attrs import evolve, frozen

from lorafsm_tla.manifest import folder
from tests.mutants.tla_text import Definition, Text, Tokens, junction, place_of, split, top_level

ROOTS = {
    "LoraRegistry": ("OfDriver", "OfTarget", "OfOwner", "OfReclaimer", "OfFleet", "OfRepairer"),
    "EngineAgent": ("Next",),
}
"""Where the actions of a module are named."""
COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ENDS = {
    "/\\",
    "\\/",
    "=>",
    "<=>",
    "THEN",
    "ELSE",
    "IN",
    "IF",
    "LET",
    ":",
    ",",
    "->",
    "=",
    "#",
    "~",
    "[]",
    "|->",
    "\\in",
    "==",
    "CASE",
}
_PRIMED = re.compile(r"\w+'$")


@frozen
class SpecMutant:
    """One change: what stands from `at` to `end` becomes, for this mutant, something else."""

    module: str
    definition: str
    kind: str
    text: str
    again: int
    at: int
    end: int
    change: str  # how the text is changed; `{}` is what stood there

    @property
    def id(self) -> str:
        """A name that edits elsewhere leave as it is."""
        again = f" ({self.again})" if self.again > 1 else ""
        return f"{self.module}!{self.definition}: {self.kind}: {self.text}{again}"


@cache
def text_of_module(name: str) -> Text:
    """A module of tla/."""
    return Text((folder() / f"{name}.tla").read_text())


def spec_mutants() -> list[SpecMutant]:
    """All of them, in the order of the text."""
    return [mutant for module in ROOTS for mutant in _mutants_of(module)]


def actions_of(module: str) -> list[str]:
    """The actions that a module's Next chooses from."""
    found = text_of_module(module).definitions()
    named = set().union(*(found[root].words for root in ROOTS[module]))
    return [name for name in found if name in named and name not in ROOTS[module] and _acts(found, name)]


def _reached(found: dict[str, Definition], names: Sequence[str]) -> set[str]:
    reached, todo = set(names), list(names)
    while todo:
        more = (found[todo.pop()].words & found.keys()) - reached
        reached |= more
        todo += more
    return reached


@cache
def actions_reaching(module: str, definition: str) -> frozenset[str]:
    """The actions in which a definition plays a part."""
    found = text_of_module(module).definitions()
    return frozenset(name for name in actions_of(module) if definition in _reached(found, [name]))


def _acts(found: dict[str, Definition], name: str) -> bool:
    return any(_PRIMED.match(token.text) for part in _reached(found, [name]) for token in found[part].body)


def _mutants_of(module: str) -> Iterator[SpecMutant]:
    text = text_of_module(module)
    found = text.definitions()
    judged = _reached(found, actions_of(module))
    seen: Counter[str] = Counter()
    reader = _Reader(text, frozenset(name for name in found if _acts(found, name)))
    for name, definition in found.items():
        if name in judged and name not in ROOTS[module] and name not in ("vars", "Init"):
            boolean = _is_boolean(definition)
            for kind, tokens, change in reader.sites(definition.body, boolean=boolean):
                mutant = SpecMutant(
                    module, name, kind, text.shown(tokens)[:100], 1, tokens[0].at, tokens[-1].end, change
                )
                seen[mutant.id] += 1
                yield evolve(mutant, again=seen[mutant.id])


def _is_boolean(definition: Definition) -> bool:
    body = definition.body
    if body[0].text == "LET":
        inside = place_of(body, "IN", 1)
        assert inside is not None
        body = body[inside + 1 :]
    words = [token.text for _, token in top_level(body)]
    starts = words[0] in ("/\\", "\\/", "\\A", "\\E", "~")
    logical = {"/\\", "\\/", "=>", "\\in", "\\notin", "=", "#", "<", "<=", ">", ">="} & set(words)
    return starts or (words[0] not in ("IF", "CASE", "[", "{", "LET") and bool(logical))


Site = tuple[str, Tokens, str]
DROP = "(ON \\/ ({}))"


@frozen
class _Reader:
    text: Text
    acting: frozenset[str]

    def sites(self, tokens: Tokens, *, boolean: bool) -> Iterator[Site]:
        """Every site in an expression, which is a condition or a value."""
        yield from self.condition(tokens, leaf=True) if boolean else self.value(tokens)

    def condition(self, tokens: Tokens, *, leaf: bool, drop: str = DROP) -> Iterator[Site]:
        """The guards and effects of a condition; `drop` is how a leaf is taken out of what it stands in."""
        if not tokens:
            return
        first = tokens[0].text
        if first in ("/\\", "\\/"):
            way = DROP if first == "/\\" else "(~ON /\\ ({}))"
            for item in junction(tokens):
                yield from self.condition(item, leaf=True, drop=way)
            return
        if first == "LET":
            inside = place_of(tokens, "IN", 1)
            assert inside is not None
            yield from self.value(tokens[1:inside])
            yield from self.condition(tokens[inside + 1 :], leaf=leaf, drop=drop)
            return
        if first in ("\\A", "\\E"):
            colon = next(at for at, token in top_level(tokens) if token.text == ":")
            if leaf and not self._acts(tokens):
                yield "drop guard", tokens, drop
            yield from self.condition(tokens[colon + 1 :], leaf=True)
            return
        if first == "IF":
            then, other = place_of(tokens, "THEN", 1), place_of(tokens, "ELSE", 1)
            assert then is not None
            assert other is not None
            yield from self.condition(tokens[1:then], leaf=True)
            yield from self.condition(tokens[then + 1 : other], leaf=True)
            yield from self.condition(tokens[other + 1 :], leaf=True)
            return
        for word, way in (("=>", DROP), ("\\/", "(~ON /\\ ({}))"), ("/\\", DROP)):
            parts = split(tokens, word)
            if len(parts) > 1:
                if word == "=>" and leaf:
                    yield "drop guard", tokens, drop
                for part in parts:
                    yield from self.condition(part, leaf=True, drop=way)
                return
        if first == "(" and list(top_level(tokens))[-1][0] == 0:
            yield from self.condition(tokens[1:-1], leaf=leaf, drop=drop)
            return
        yield from self._leaf(tokens, drop)

    def _leaf(self, tokens: Tokens, drop: str) -> Iterator[Site]:
        first = tokens[0].text
        if first in ("UNCHANGED", "TRUE", "FALSE", "Arrives"):
            return
        if _PRIMED.match(first) and len(tokens) > 1 and tokens[1].text == "=":
            if first != "now'" and not (self._is_unchanged(tokens)):
                yield "drop effect", tokens[2:], f"(IF ON THEN {first[:-1]} ELSE ({{}}))"
            yield from self.value(tokens[2:])
            return
        if self._acts(tokens):
            yield from self.value(tokens)
            return
        yield "drop guard", tokens, drop
        yield from self.value(tokens)

    @staticmethod
    def _is_unchanged(tokens: Tokens) -> bool:
        return len(tokens) == 3 and tokens[2].text == tokens[0].text[:-1]

    def _acts(self, tokens: Tokens) -> bool:
        return any(
            token.text in self.acting
            or token.text == "UNCHANGED"
            or (_PRIMED.match(token.text) and token.text != "now'")
            for token in tokens
        )

    def value(self, tokens: Tokens) -> Iterator[Site]:
        """The conditions, EXCEPTs and boundaries inside a value."""
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.text in ("[", "(", "{", "<<"):
                end = _closing(tokens, at)
                yield from self._bracket(token.text, tokens[at + 1 : end])
                at = end + 1
            elif token.text == "IF":
                then = place_of(tokens[at:], "THEN", 1)
                assert then is not None
                yield from self.condition(tokens[at + 1 : at + then], leaf=True)
                at += then + 1
            elif token.text in ("CASE", "[]") and tokens[at + 1].text != "OTHER":
                arrow = next(i for i, t in top_level(tokens[at:]) if t.text == "->")
                yield from self.condition(tokens[at + 1 : at + arrow], leaf=True)
                at += arrow + 1
            elif token.text in ("\\A", "\\E"):
                colon = next(i for i, t in top_level(tokens[at:]) if t.text == ":")
                yield from self.condition(tokens[at + colon + 1 :], leaf=True)
                return
            elif token.text in COMPARED:
                yield from self._boundary(tokens, at)
                at += 1
            else:
                at += 1

    def _bracket(self, opening: str, inside: Tokens) -> Iterator[Site]:
        words = [token.text for _, token in top_level(inside)]
        if opening == "[" and "EXCEPT" in words:
            place = next(at for at, token in top_level(inside) if token.text == "EXCEPT")
            yield from self.value(inside[:place])
            for part in split(inside[place + 1 :], ","):
                equals = next(at for at, token in top_level(part) if token.text == "=")
                yield "drop effect", part[equals + 1 :], "(IF ON THEN @ ELSE ({}))"
                yield from self.value(part[equals + 1 :])
            return
        if opening == "{" and ":" in words and words[1] == "\\in":
            place = next(at for at, token in top_level(inside) if token.text == ":")
            yield from self.condition(inside[place + 1 :], leaf=True)
            return
        if opening == "(" and {"/\\", "\\/", "=>"} & set(words):
            yield from self.condition(inside, leaf=True)
            return
        yield from self.value(inside)

    def _boundary(self, tokens: Tokens, at: int) -> Iterator[Site]:
        left, right = at, at + 1
        while left > 0 and tokens[left - 1].text not in _ENDS | COMPARED.keys():
            left = _opening(tokens, left - 1)
        while right < len(tokens) and tokens[right].text not in _ENDS | COMPARED.keys():
            right = _closing(tokens, right) + 1 if tokens[right].text in ("(", "[", "{", "<<") else right + 1
        if left == at or right == at + 1:
            return
        a, b = self.text.shown(tokens[left:at]), self.text.shown(tokens[at + 1 : right])
        yield "boundary", tokens[left:right], f"(IF ON THEN {a} {COMPARED[tokens[at].text]} {b} ELSE {{}})"


def _closing(tokens: Tokens, at: int) -> int:
    depth = 0
    for place in range(at, len(tokens)):
        depth += (tokens[place].text in "([{" or tokens[place].text == "<<") - (
            tokens[place].text in (")", "]", "}", ">>")
        )
        if depth == 0:
            return place
    raise ValueError(f"a bracket is not closed in line {tokens[at].line + 1}")


def _opening(tokens: Tokens, at: int) -> int:
    if tokens[at].text not in (")", "]", "}", ">>"):
        return at
    depth = 0
    for place in range(at, -1, -1):
        depth += (tokens[place].text in (")", "]", "}", ">>")) - (tokens[place].text in ("(", "[", "{", "<<"))
        if depth == 0:
            return place
    raise ValueError(f"a bracket is not opened in line {tokens[at].line + 1}")


def with_mutants(module: str, chosen: dict[int, SpecMutant]) -> str:
    """The module with these mutants in it, by their numbers, every action keeping `mutant` as it is.

    Whatever stood in a column still stands there, since a junction list is told by its column.
    """
    text = text_of_module(module)
    marks: dict[int, list[tuple[int, int, str]]] = {}
    for number, mutant in chosen.items():
        before, after = mutant.change.replace("ON", f"(mutant = {number})").split("{}")
        marks.setdefault(mutant.at, []).append((0, -mutant.end, before))
        marks.setdefault(mutant.end, []).append((-1, -mutant.at, after))
    for name in actions_of(module):
        body = text.definitions()[name].body
        marks.setdefault(body[0].at, []).append((0, -(1 << 30), "mutant' = mutant /\\ ("))
        marks.setdefault(body[-1].end, []).append((-1, 1 << 30, ")"))
    out, at = [], 0
    for place in sorted(marks):
        out.append(text.source[at:place])
        inserted = [word for _, _, word in sorted(marks[place])]
        out += [*inserted, "\n", " " * text.column(place)]
        at = place
    out.append(text.source[at:])
    source = "".join(out)
    head = re.search(r"^vars ==", source, re.MULTILINE)
    assert head is not None
    return f"{source[: head.start()]}VARIABLE mutant\n\n{source[head.start() :]}"
