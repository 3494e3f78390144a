"""Figures: one drawing, saved as PDF, SVG and PNG for papers, and inline in a page, where it follows the theme."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surebound.disk import explained, write_whole
from surebound.errors import InputError
from surebound.verify import plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PROVED, BROKEN, OPEN, WRONG = plot.PROVED, plot.BROKEN, plot.OPEN, plot.WRONG
INK, MUTED, PAPER = "#1d2328", "#69737c", "#fefefd"
SERIES = ("#2f6db3", "#b3562f", "#1b7f5c", "#8a5aa8", "#7d6a1c", "#3d8f99")
FORMATS = ("pdf", "svg", "png")
PNG_DPI = 192  # two pixels for each of a page: sharp on screens of double density and on projectors

# Colours that a page gives its own value in each theme: report/page.css holds the other halves.
THEMED = {
    INK: "ink", MUTED: "muted", PAPER: "paper", PROVED: "proved", BROKEN: "broken", OPEN: "open",
    WRONG: "wrong", **{colour: f"s{i}" for i, colour in enumerate(SERIES) if colour != PROVED},
}  # fmt: skip

STYLE: dict[str, Any] = {
    "font.size": 9.0,
    "font.family": "sans-serif",
    "svg.fonttype": "none",  # text stays text: it can be read, found and copied
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": MUTED,
    "grid.alpha": 0.22,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "figure.facecolor": PAPER,
}


@dataclass(frozen=True, eq=False)
class Figure:
    """A drawing by name. `draw` fills an empty canvas of `size` inches; `alt` says what is to be seen."""

    name: str  # a file's stem
    alt: str
    draw: Callable[[Canvas], None]
    size: tuple[float, float] = (6.2, 3.0)
    caption: str = ""

    def render(self, form: str) -> bytes:
        """The file's content; `form` is one of FORMATS. The same drawing gives the same bytes."""
        # Figure, not pyplot: no window system is touched and no global state is left behind.
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas

        buffer = io.BytesIO()
        stamps = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
        with mpl.rc_context({**STYLE, "svg.hashsalt": self.name}):  # type: ignore[dict-item]  # its names are literals
            canvas = Canvas(figsize=self.size, layout="constrained")
            self.draw(canvas)
            canvas.savefig(buffer, format=form, dpi=PNG_DPI, metadata=stamps[form])
        return buffer.getvalue()

    def write(self, directory: Path, forms: tuple[str, ...] = FORMATS) -> list[Path]:
        """NAME.pdf, NAME.svg and NAME.png in `directory`."""
        paths = [directory / f"{self.name}.{form}" for form in forms]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for form, path in zip(forms, paths, strict=True):
                write_whole(path, self.render(form))
        except OSError as error:
            raise InputError(f"the figure {self.name} cannot be written to {directory}: {explained(error)}") from error
        return paths

    def html(self) -> str:
        """A <figure> with the drawing inline."""
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return f'<figure class="chart">{self.inline()}{caption}</figure>'

    def inline(self) -> str:
        """The SVG as part of a page: colours by the page's theme, its fonts, and no ids that could clash."""
        svg = self.render("svg").decode("utf-8")
        svg = re.sub(r"^.*?(?=<svg)", "", svg, flags=re.DOTALL)
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r' (?:xmlns:\w+|xmlns)="[^"]*"', "", svg)
        svg = svg.replace("xlink:href", "href")
        svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg)
        svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg)
        used = set(re.findall(r"(?:url\(#|href=\"#)([\w-]+)", svg))
        svg = re.sub(r' id="([\w.:-]+)"', lambda m: m[0] if m[1] in used else "", svg)
        for name in used:  # two drawings on one page may have the same parts
            for form in (f'id="{name}"', f"url(#{name})", f'href="#{name}"'):
                svg = svg.replace(form, form.replace(name, f"{self.name}-{name}"))
        for colour, variable in THEMED.items():
            svg = svg.replace(colour, f"var(--{variable})")
        svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", svg)
        label = html.escape(self.alt, quote=True)
        return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()
