"""A small reader of TLA+ text: tokens with their places, definitions, and the parts of a boolean expression.

It knows what the specifications of tla/ use: junction lists by their columns, brackets, LET, IF, CASE, quantifiers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from attrs import field, frozen

_TOKEN = re.compile(
    r'-{4,}|={4,}|\(\*.*?\*\)|\\\*[^\n]*|"[^"\n]*"|/\\|\\/|\|->|<=>|=>|<<|>>|->|<-|==|:>|@@|\.\.|\[\]|<=|>=|\\[A-Za-z]+'
    r"|[A-Za-z_][A-Za-z0-9_]*'?|\d+|\S",
    re.DOTALL,
)
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}", "<<": ">>"}, {")", "]", "}", ">>"}


@frozen
class Token:
    """A word, and where it stands."""

    text: str
    at: int
    line: int
    column: int

    @property
    def end(self) -> int:
        """The place behind it."""
        return self.at + len(self.text)


Tokens = Sequence[Token]


@frozen
class Definition:
    """`Name(parameters) == body`."""

    name: str
    body: Tokens

    @property
    def words(self) -> set[str]:
        """What it names."""
        return {token.text.rstrip("'") for token in self.body}


@frozen
class Text:
    """A module."""

    source: str
    lines: list[int] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "lines", [0, *(m.end() for m in re.finditer("\n", self.source))])

    def column(self, at: int) -> int:
        """The column of a place, from 0."""
        return at - self.lines[bisect_right(self.lines, at) - 1]

    def tokens(self) -> list[Token]:
        """All words but comments and rules."""
        found = []
        for match in _TOKEN.finditer(self.source):
            if not match[0].startswith(("(*", "\\*", "----", "====")):
                line = bisect_right(self.lines, match.start()) - 1
                found.append(Token(match[0], match.start(), line, match.start() - self.lines[line]))
        return found

    def definitions(self) -> dict[str, Definition]:
        """Every definition that begins a line."""
        tokens = self.tokens()
        starts = []
        for index, token in enumerate(tokens):
            if token.column == 0 and re.fullmatch(r"[A-Za-z_]\w*", token.text):
                equals = _defines(tokens, index)
                if equals:
                    starts.append((index, equals))
        found = {}
        ends = [index for index, _ in starts[1:]] + [len(tokens)]
        for (index, equals), end in zip(starts, ends, strict=True):
            body = [t for t in tokens[equals + 1 : end] if t.column > 0]
            found[tokens[index].text] = Definition(tokens[index].text, body)
        return found

    def shown(self, tokens: Tokens) -> str:
        """The text of these tokens in one line."""
        return re.sub(r"\s+", " ", re.sub(r"\\\*[^\n]*", "", self.source[tokens[0].at : tokens[-1].end])).strip()


def _defines(tokens: Tokens, index: int) -> int:
    """Where the `==` of a definition that begins here stands; 0: none begins here."""
    at = index + 1
    if at < len(tokens) and tokens[at].text == "(":
        at = _behind(tokens, at)
    return at if at < len(tokens) and tokens[at].text == "==" else 0


def _behind(tokens: Tokens, at: int) -> int:
    """The place behind the bracket that opens here."""
    depth = 0
    while True:
        depth += (tokens[at].text in _OPEN) - (tokens[at].text in _CLOSE)
        at += 1
        if not depth:
            return at


def top_level(tokens: Tokens) -> Iterator[tuple[int, Token]]:
    """The tokens that stand in no bracket of these."""
    at = 0
    while at < len(tokens):
        yield at, tokens[at]
        at = _behind(tokens, at) if tokens[at].text in _OPEN else at + 1


def split(tokens: Tokens, word: str) -> list[Tokens]:
    """The parts between the top-level occurrences of a word; IF, CASE, LET and quantifiers reach to the end."""
    places = []
    for at, token in top_level(tokens):
        if token.text in ("IF", "CASE", "LET", "\\A", "\\E"):
            break
        if token.text == word:
            places.append(at)
    return [tokens[a:b] for a, b in zip([0, *(at + 1 for at in places)], [*places, len(tokens)], strict=True)]


def junction(tokens: Tokens) -> list[Tokens]:
    """The items of a junction list that begins here, without their bullets."""
    bullet = tokens[0]
    places = [
        at
        for at, token in top_level(tokens)
        if token.text == bullet.text and token.column == bullet.column and (at == 0 or token.line > bullet.line)
    ]
    return [tokens[a + 1 : b] for a, b in zip(places, [*places[1:], len(tokens)], strict=True)]


def place_of(tokens: Tokens, word: str, start: int = 0) -> int | None:
    """Where a word stands at the top level, counting nested IF and LET; None: nowhere."""
    depth = 0
    opens, closes = {"THEN": "IF", "ELSE": "IF", "IN": "LET"}.get(word, ""), word
    for at, token in top_level(tokens):
        if at < start:
            continue
        if opens and token.text == opens:
            depth += 1
        if token.text == closes:
            if depth == 0:
                return at
            depth -= 1
    return None
