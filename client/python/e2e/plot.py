"""Bars as an SVG, without a library."""

from __future__ import annotations

from xml.sax.saxutils import escape

_WIDTH, _LABELS, _ROW, _HEAD = 900, 330, 20, 44


def bars(title: str, panels: dict[str, dict[str, float]]) -> str:
    """A panel below the other, each with a bar for every name; bars begin at zero, and each says its value."""
    parts, y = [f'<text x="10" y="22" font-size="16" font-weight="bold">{escape(title)}</text>'], _HEAD
    for heading, values in panels.items():
        parts.append(f'<text x="10" y="{y + 14}" font-size="13" font-weight="bold">{escape(heading)}</text>')
        y += 24
        largest = max(values.values(), default=0) or 1
        for name, value in values.items():
            length = (_WIDTH - _LABELS - 80) * value / largest
            parts.append(f'<text x="{_LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{_LABELS}" y="{y + 3}" width="{length:.1f}" height="{_ROW - 6}" fill="#3b6ea5"/>')
            parts.append(f'<text x="{_LABELS + length + 6:.1f}" y="{y + 14}">{value:.1f}</text>')
            y += _ROW
        y += 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )
