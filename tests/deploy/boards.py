#!/usr/bin/env python3
"""Reads dashboards as Grafana's own schema has them: boards.py FILE...

What the schema of the release does not know, a misspelt option or a panel of no
such type, Grafana would pass over without a word. The schema is that of
PyPI's grafana-foundation-sdk, which is generated from Grafana's.
"""

import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.cog.runtime import panelcfg_config
from grafana_foundation_sdk.models.dashboard import Dashboard


def losses(given, kept, where):
    """What is in `given`, but not in `kept`."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from losses(value, kept[key], f"{where}.{key}")
            else:
                yield f"{where}: there is no {key!r}"
    elif isinstance(given, list) and isinstance(kept, list):
        for i, (before, after) in enumerate(zip(given, kept, strict=True)):
            yield from losses(before, after, f"{where}[{i}]")
    elif given != kept:
        yield f"{where}: {given!r} becomes {kept!r}"


def errors(path):
    board = json.loads(path.read_text())
    for panel in board["panels"]:
        if panelcfg_config(panel["type"]) is None:
            yield f"{path.name}: there are no panels of type {panel['type']!r}"
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    yield from losses(board, kept, path.name)


def main():
    register_default_plugins()
    paths = [pathlib.Path(path) for path in sys.argv[1:]]
    found = [error for path in paths for error in errors(path)]
    for error in found:
        print(error, file=sys.stderr)
    print(f"{len(paths)} dashboards were read by Grafana's schema")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
