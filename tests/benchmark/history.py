#!/usr/bin/env python3
"""Draws the results of ./bench.sh as an SVG: of each row with a goal, its
ratio over the goal, by the date of the commit's result.

    tests/benchmark/history.py tests/benchmark/results

Reads all *.json of the folder and writes history.svg into it. Results of
--quick are left out. One small plot for each group of rows; above the line at
1, a goal is reached.
"""

import glob
import html
import json
import math
import os
import sys

WIDTH, HEIGHT, LEFT, TOP, LABELS = 300, 150, 40, 28, 400
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7",
           "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")
LOW, HIGH = 0.25, 4.0  # of the scale, which is logarithmic


def reached_share(row):
    """How far a row is beyond its goal: 1 is just reached."""
    sign, limit = row["goal"].split()
    share = row.get("ratio", row["ours"]) / float(limit)
    return share if sign == ">=" else 1 / share


def load(folder):
    results = []
    for name in glob.glob(os.path.join(folder, "*.json")):
        with open(name, encoding="utf-8") as file:
            result = json.load(file)
        if not result["quick"]:
            results.append(result)
    return sorted(results, key=lambda result: result["date"])


def series(results):
    """{group: {row: [(index of the result, share)]}}"""
    groups = {}
    for index, result in enumerate(results):
        for row in result["rows"]:
            if row["goal"] and "unmeasured" not in row:
                groups.setdefault(row["group"], {}).setdefault(
                    row["name"], []).append((index, reached_share(row)))
    return groups


def y_of(share):
    share = min(max(share, LOW), HIGH)
    return HEIGHT * (1 - math.log(share / LOW) / math.log(HIGH / LOW))


def text(x, y, words, style=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{html.escape(words)}</text>'


def plot(group, rows, results):
    """The elements of one group's plot, with its corner at 0, 0."""
    step = WIDTH / max(len(results) - 1, 1)
    parts = [text(LEFT, TOP - 10, group, 'font-weight="bold"')]
    for share in (LOW, 0.5, 1, 2, HIGH):
        y = TOP + y_of(share)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" '
                     f'y2="{y:.1f}" stroke="{"#000" if share == 1 else "#ddd"}"'
                     "/>" + text(4, y + 4, f"{share:g}"))
    for i, (name, points) in enumerate(rows.items()):
        colour = COLOURS[i % len(COLOURS)]
        at = [(LEFT + index * step, TOP + y_of(share))
              for index, share in points]
        parts.append(f'<polyline fill="none" stroke="{colour}" points="' +
                     " ".join(f"{x:.1f},{y:.1f}" for x, y in at) + '"/>')
        for (x, y), (index, share) in zip(at, points):
            of = results[index]
            title = (f"{name}: {share:.2f} of its goal, {of['date']}, "
                     f"{of['commit'][:12]}, {of['cpu']}")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" '
                         f'fill="{colour}"><title>{html.escape(title)}</title>'
                         "</circle>")
        parts.append(text(LEFT + WIDTH + 12, TOP + 10 + 14 * i,
                          f"{name}: {points[-1][1]:.2f}",
                          f'fill="{colour}"'))
    return parts


def draw(results):
    parts, bottom = [], 24
    for group, rows in series(results).items():
        parts.append(f'<g transform="translate(0 {bottom})">')
        parts += plot(group, rows, results) + ["</g>"]
        bottom += TOP + 24 + max(HEIGHT, 14 * len(rows))
    said = "no results yet"
    if results:
        last = results[-1]
        said = (f"{len(results)} results, the last of {last['date'][:10]} on "
                f"{last['cpu']}: share of the goal, 1 is reached")
    width = LEFT + WIDTH + LABELS
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{bottom}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{bottom}" fill="#fff"/>',
        text(4, 16, said), *parts, "</svg>", ""])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(os.path.join(sys.argv[1], "history.svg"), "w",
              encoding="utf-8") as file:
        file.write(draw(load(sys.argv[1])))


if __name__ == "__main__":
    main()
