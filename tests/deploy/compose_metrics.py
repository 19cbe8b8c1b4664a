#!/usr/bin/python3
"""Asks a running Prometheus every expression of deploy/monitoring.

  tests/deploy/compose_metrics.py http://127.0.0.1:9090

Each has to be understood; those over the metrics in REQUIRED have to have data
once a job has trained and its model has translated. Rules have to have been
evaluated without an error.
"""

import json
import pathlib
import re
import sys
import urllib.parse
import urllib.request

# What training and translating leave for sure. An expression with other
# metrics, too, may have none: of errors, for one.
REQUIRED = {
    "up", "gshard_train_step", "gshard_train_loss", "gshard_train_tokens_total",
    "gshard_translate_requests_total", "gshard_translate_duration_seconds_bucket",
    "gshard_expert_tokens_total", "gshard_expert_calls_total",
    "gshard_admissions_total",
}


def get(server, path, **arguments):
  url = f"{server}/api/v1/{path}?" + urllib.parse.urlencode(arguments)
  try:
    with urllib.request.urlopen(url, timeout=30) as answer:
      return json.load(answer)
  except urllib.error.HTTPError as error:
    return json.load(error)


def expressions():
  """(where, expression), with the variables of dashboards as Grafana has them."""
  for path in sorted(pathlib.Path("deploy/monitoring/dashboards").glob("*.json")):
    dashboard = json.loads(path.read_text())
    variables = {}
    for variable in dashboard["templating"]["list"]:
      value = variable.get("current", {}).get("value", variable["query"])
      variables[variable["name"]] = ".*" if value == "$__all" else str(value)
    panels = list(dashboard["panels"])
    for panel in panels:
      panels.extend(panel.get("panels", []))
      for target in panel.get("targets", []):
        expression = target["expr"].replace("$__rate_interval", "1m")
        expression = expression.replace("$__range", "1h")
        yield (f"{path.name}: {panel['title']}",
               re.sub(r"\$\{?(\w+)(?::\w+)?\}?",
                      lambda match: variables[match[1]], expression))


def main():
  server = sys.argv[1]
  failures, asked, answered = [], 0, 0
  for where, expression in expressions():
    answer = get(server, "query", query=expression)
    asked += 1
    if answer["status"] != "success":
      failures.append(f"{where}: {answer['error']}")
      continue
    answered += bool(answer["data"]["result"])
    # Filters that exclude what there is, such as > 0, may leave nothing.
    names = set(re.findall(r"\b(?:gshard_\w+|up)\b", expression))
    if (names and names <= REQUIRED and not re.search(r"[<>=]=?\s*[0-9.]+",
        expression) and not answer["data"]["result"]):
      failures.append(f"{where}: no data for {expression}")
  rules = [rule for group in get(server, "rules")["data"]["groups"]
           for rule in group["rules"]]
  for rule in rules:
    if rule["health"] != "ok":
      failures.append(f"{rule['name']}: {rule['health']} {rule.get('lastError')}")
  if not asked or not rules:
    failures.append(f"{asked} expressions and {len(rules)} rules were found")
  for failure in failures:
    print("FAILED:", failure, file=sys.stderr)
  print(f"{asked} expressions of dashboards: {answered} have data; "
        f"{len(rules)} rules evaluated")
  return 1 if failures else 0


if __name__ == "__main__":
  sys.exit(main())
