"""A chart of slots over time: the workers of each job above each other, and services on top."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from experiments.figures import Span

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 280, 48, 34
POINTS = 240
COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f")
SERVICES, INK = "#bab0ac", "#808080"


def slots_over_time(spans: Sequence[Span]) -> str:
    """An SVG of workers by job and services; the servers of jobs are not in it."""
    picked = [spans[number] for number in range(0, len(spans), -(-len(spans) // POINTS))]
    jobs = sorted({job for span in picked for job in span.workers})
    rows = [
        [*(span.workers.get(job, 0) for job in jobs), *([span.services] if _served(spans) else [])]
        for span in picked
    ]
    layers = [[0, *accumulate(row)] for row in rows]
    most = max((layer[-1] for layer in layers), default=0) or 1
    last_s = picked[-1].end_s

    def point(at_s: float, slots: float) -> str:
        x = LEFT + (WIDTH - LEFT - 8) * at_s / last_s
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * slots / most
        return f"{x:.1f},{y:.1f}"

    names = [*jobs, *(["services"] if _served(spans) else [])]
    areas = [
        _area(
            [point(span.end_s, layer[number]) for span, layer in zip(picked, layers, strict=True)],
            [
                point(span.end_s, layer[number + 1])
                for span, layer in zip(picked, layers, strict=True)
            ],
            SERVICES if name == "services" else COLORS[number % len(COLORS)],
            name,
        )
        for number, name in enumerate(names)
    ]
    return "\n".join([*_frame(most, last_s), *areas, "</svg>", ""])


def _served(spans: Sequence[Span]) -> bool:
    return any(span.services for span in spans)


def _area(below: list[str], above: list[str], color: str, name: str) -> str:
    points = " ".join([*below, *reversed(above)])
    return f'<polygon points="{points}" fill="{color}"><title>{name}</title></polygon>'


def _frame(most: int, last_s: float) -> list[str]:
    font = f'font-family="sans-serif" font-size="12" fill="{INK}"'
    y = HEIGHT - BOTTOM
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f'<text x="{LEFT - 6}" y="20" text-anchor="end" {font}>{most}</text>',
        f'<text x="{LEFT - 6}" y="{y}" text-anchor="end" {font}>0</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 12}" {font}>0 s</text>',
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 12}" text-anchor="end" {font}>{last_s:.0f} s</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle" {font}>slots</text>',
    ]
