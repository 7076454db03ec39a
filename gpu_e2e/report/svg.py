"""A little drawing: elements with tooltips, and scales that turn values into places.

The tree is built with ElementTree, so every text and attribute is escaped when it is written out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement, tostring

from attrs import frozen

_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def clean(text: object) -> str:
    """Text without the characters that no XML or HTML document may hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(text))


def canvas(width: float, height: float, title: str, css_class: str = "") -> Element:
    """An empty picture that says what it shows to those who cannot see it."""
    box = f"0 0 {_number(width)} {_number(height)}"
    return Element("svg", {"viewBox": box, "role": "img", "class": css_class, "aria-label": clean(title)})


def add(parent: Element, tag: str, css_class: str = "", tip: str = "", text: str = "", **where: float | str) -> Element:
    """A child element; `where` are its attributes (`stroke_width` for stroke-width), `tip` its tooltip."""
    attributes = {name.replace("_", "-"): clean(v) if isinstance(v, str) else _number(v) for name, v in where.items()}
    if css_class:
        attributes["class"] = css_class
    element = SubElement(parent, tag, attributes)
    if tip:
        SubElement(element, "title").text = clean(tip)
    if text:
        element.text = clean(text)
    return element


def markup(svg: Element) -> str:
    """The picture as text to put into a page."""
    return tostring(svg, encoding="unicode", short_empty_elements=False)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


@frozen
class Linear:
    """A linear scale from [low, high] to [start, end]; values outside are held at the ends."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        share = min(1.0, max(0.0, (value - self.low) / span))
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int) -> Iterator[float]:
        """Round values, about so many."""
        rough = (self.high - self.low or 1.0) / max(1, about)
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * f for f in (1, 2, 5, 10) if unit * f >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        for index in range(first, math.floor(self.high / step + 1e-9) + 1):
            yield index * step


@frozen
class Log:
    """A logarithmic scale from [low, high] (both above 0) to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inner = Linear(math.log(self.low), math.log(self.high), self.start, self.end)
        return inner(math.log(max(value, self.low)))

    def ticks(self) -> Iterator[float]:
        """1, 2, 5 of each decade within."""
        for exponent in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1):
            for factor in (1, 2, 5):
                if self.low <= (value := factor * 10.0**exponent) <= self.high:
                    yield value
