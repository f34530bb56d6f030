"""Draw memory over requests as a picture that any browser shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 760
HEIGHT: Final = 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 44  # around the plot: room for words
TICKS: Final = 6
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#444}.title{font-weight:bold;fill:#111}"
    "path{fill:none;stroke-width:1.5}.grid{stroke:#ddd;stroke-width:1}"
    ".fit{stroke:#c33;stroke-dasharray:6 4}.line{stroke:#15c}.warm-up{fill:#f3f3f3}"
)


def plot(
    title: str,
    points: Sequence[tuple[float, float]],
    *,
    fit: tuple[tuple[float, float], tuple[float, float]],
    x_name: str,
    y_name: str,
) -> str:
    """Return an SVG of points joined by a line, and of a straight line from where the fit begins.

    What lies before the fit is shaded. The y axis begins at 0, so that little looks like little.
    """
    most_x = max(x for x, _ in points) or 1.0
    step = nice_step(max(y for _, y in points) or 1.0)
    most_y = step * math.ceil(max(y for _, y in points) / step) or step
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    warm_up = wide * fit[0][0] / most_x

    def at(x: float, y: float) -> str:
        return f"{LEFT + wide * x / most_x:.1f} {TOP + high * (1 - y / most_y):.1f}"

    def path(kind: str, line: Sequence[tuple[float, float]]) -> str:
        return f'<path class="{kind}" d="M{" L".join(at(*point) for point in line)}"/>'

    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">',
        f'<style>{_STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<rect class="warm-up" x="{LEFT}" y="{TOP}" width="{warm_up:.1f}" height="{high}"/>',
        _text(LEFT, TOP - 18, title, "start", kind="title"),
        _text(WIDTH - RIGHT, HEIGHT - 8, x_name, "end"),
        _text(8, TOP - 18, y_name, "start"),
    ]
    for number in range(round(most_y / step) + 1):
        y = step * number
        pieces.append(path("grid", [(0, y), (most_x, y)]))
        _, _, down = at(0, y).partition(" ")
        pieces.append(_text(LEFT - 8, float(down) + 4, f"{y:,.10g}", "end"))
    step = nice_step(most_x)
    for number in range(int(most_x / step) + 1):
        across, _, _ = at(step * number, 0).partition(" ")
        pieces.append(
            _text(float(across), HEIGHT - BOTTOM + 18, f"{step * number:,.10g}", "middle")
        )
    pieces += [path("line", points), path("fit", fit), "</svg>"]
    return "\n".join(pieces) + "\n"


def nice_step(most: float) -> float:
    """Return 1, 2 or 5 times a power of ten, so that about `TICKS` of it reach `most`."""
    rough = most / TICKS
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= rough)


def _text(x: float, y: float, text: str, anchor: str, *, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'
