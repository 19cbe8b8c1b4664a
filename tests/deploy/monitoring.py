#!/usr/bin/env python3
"""Checks the files of deploy/monitoring, and their expressions on a Prometheus.

  tests/deploy/monitoring.py files       as they lie there
  tests/deploy/monitoring.py live URL [PORT]
                                         asks the Prometheus at URL, which scrapes
                                         a system at work, until each expression
                                         has data, at most 2 minutes; has what is
                                         scraped read by a strict parser; with a
                                         PORT of 127.0.0.1 takes the system's
                                         spans there, to which exemplars have to
                                         lead

Prints what is wrong, a line each.
"""

import http.server
import json
import math
import pathlib
import re
import sys
import threading
import time
import urllib.parse
import urllib.request

import yaml

try:
    from prometheus_client.openmetrics import parser
except ImportError:
    parser = None  # for "files"

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy/monitoring"

# Latencies whose exemplars lead to traces.
TRACED = ("gshard_translate_duration_seconds", "gshard_stream_request_duration_seconds",
          "gshard_train_step_duration_seconds", "gshard_expert_call_duration_seconds",
          "gshard_stage_duration_seconds", "gshard_queue_duration_seconds")
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def rules():
    for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]:
        yield from group["rules"]


def dashboards():
    for path in sorted(FOLDER.glob("dashboards/*.json")):
        yield path, json.loads(path.read_text())


def anchors(markdown):
    return {re.sub(r"[^a-z0-9-]", "", heading.lower().replace(" ", "-"))
            for heading in re.findall(r"^## (.*)$", markdown, re.M)}


def alert_errors():
    known = anchors((FOLDER / "runbook.md").read_text())
    used, fires, quiet = set(), set(), set()
    for path in FOLDER.glob("tests/*.yml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            for item in test["promql_expr_test"]:
                for sample in item["exp_samples"]:
                    fires.update(re.findall(r'alertname="(\w+)"', sample["labels"]))
                if not item["exp_samples"]:
                    quiet.update(re.findall(r'alertname="(\w+)"', item["expr"]))
    for alert in (rule for rule in rules() if "alert" in rule):
        name, annotations = alert["alert"], alert["annotations"]
        file, _, anchor = annotations.get("runbook", "").partition("#")
        used.add(anchor)
        if file != "runbook.md" or anchor not in known:
            yield f"{name}: the runbook has no paragraph #{anchor}"
        if alert["labels"].get("severity") not in ("critical", "warning"):
            yield f"{name}: expected severity critical or warning"
        if not annotations.get("summary"):
            yield f"{name}: has no summary"
        if name not in fires:
            yield f"{name}: no test has it fire"
        if name not in quiet:
            yield f"{name}: no test has it quiet"
    for anchor in sorted(known - used):
        yield f"runbook.md: no alert leads to #{anchor}"


def dashboard_errors():
    uids = set()
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["configMapGenerator"][0]["files"]
    for path, board in dashboards():
        if f"dashboards/{path.name}" not in listed:
            yield f"{path.name}: kustomization.yaml does not list it"
        if board["uid"] in uids:
            yield f"{path.name}: another has the uid {board['uid']}"
        uids.add(board["uid"])
        variables = {one["name"] for one in board["templating"]["list"]}
        if not {"datasource", "namespace", "job"} <= variables:
            yield (f"{path.name}: expected variables datasource, namespace and job, "
                   f"got {sorted(variables)}")
        places = [json.dumps(panel["gridPos"]) for panel in board["panels"]]
        if len(places) != len(set(places)):
            yield f"{path.name}: two panels are at one place"
        for panel in board["panels"]:
            where = f"{path.name}: {panel.get('title')}"
            for key in ("title", "description", "targets"):
                if not panel.get(key):
                    yield f"{where}: has no {key}"
            if not panel["fieldConfig"]["defaults"].get("unit"):
                yield f"{where}: has no unit"
            for target in panel["targets"]:
                if target["datasource"]["uid"] != "${datasource}":
                    yield f"{where}: names a data source"
                for name in re.findall(r"\$(\w+)", target["expr"]):
                    if name not in variables and not name.startswith("__"):
                        yield f"{where}: there is no variable {name}"
                for selector in selectors(target["expr"]):
                    if 'namespace=~"$namespace"' not in selector:
                        yield f"{where}: {selector} is of any namespace"


def selectors(expression):
    """The series that an expression asks for, without its conditions."""
    return [name + labels for name, labels in
            re.findall(r'"[^"]*"|\b((?:gshard|process)[\w:]*|up\b)(\{[^{}]*\})?', expression)
            if name]


def mixing_errors():
    """Rules that put what several systems say together, or compare one's with
    another's."""
    for rule in rules():
        name = rule.get("record") or rule["alert"]
        # What is in quotes, a matcher's value or a label, is no part of the form.
        form = re.sub(r'"[^"]*"', '""', rule["expr"])
        for what, kind, labels in re.findall(
                r"\b(sum|avg|min|max|count|group|topk|bottomk|quantile)\b\s*(by|without|)\s*(\([^()]*\))?", form):
            if kind != "without" and (kind != "by" or "namespace" not in labels):
                yield f"{name}: {what} mixes namespaces"
        for labels in re.findall(r"\bon\s*\(([^()]*)\)", form):
            if not re.search(r"\b(namespace|instance)\b", labels):
                yield f"{name}: on ({labels}) mixes namespaces"


def expressions():
    """Where each is, and what is asked of Prometheus."""
    for rule in rules():
        if "record" in rule:
            yield rule["record"], rule["expr"]
        else:
            # An alert has no data where all is well, but what it looks at has.
            for selector in selectors(rule["expr"]):
                yield rule["alert"], selector
    for path, board in dashboards():
        for panel in board["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in (("$__rate_interval", "30s"), ("$job", "gshard_.*"),
                                    ("$namespace", ".*"), ("$system_price", "1")):
                    expression = expression.replace(name, value)
                yield f"{path.name}: {panel['title']}", expression


def ask(url, path, **arguments):
    form = urllib.parse.urlencode(arguments).encode()
    with urllib.request.urlopen(f"{url}/api/v1/{path}", form or None, timeout=30) as answer:
        return json.load(answer)["data"]


def query(url, expression):
    return ask(url, "query", query=expression)["result"]


class Collector(http.server.BaseHTTPRequestHandler):
    """Keeps the traces of the spans that it gets."""
    traces = set()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.traces.update(re.findall(r'"traceId":"(\w+)"', body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def lead_nowhere(url, traced):
    """Of these metrics those of whose exemplars no span is known."""
    for metric in traced:
        series = ask(url, "query_exemplars", query=f"{metric}_bucket",
                     start=time.time() - 600, end=time.time() + 60)
        if not any(exemplar["labels"]["trace_id"] in Collector.traces
                   for one in series for exemplar in one["exemplars"]):
            yield metric


def format_errors(url):
    """Of what Prometheus scrapes, by the reference parser."""
    for target in ask(url, "targets")["activeTargets"]:
        request = urllib.request.Request(target["scrapeUrl"], headers={"Accept": OPEN_METRICS})
        with urllib.request.urlopen(request, timeout=30) as answer:
            if not answer.headers["Content-Type"].startswith(OPEN_METRICS):
                yield f"{target['scrapeUrl']}: got {answer.headers['Content-Type']}"
            text = answer.read().decode()
        try:
            families = list(parser.text_string_to_metric_families(text))
        except ValueError as error:
            yield f"{target['scrapeUrl']}: {error}"
            continue
        if not any(family.unit == "seconds" for family in families):
            yield f"{target['scrapeUrl']}: nothing has a unit"


def rule_errors(url):
    """Of the rules that Prometheus has evaluated; one has no health until then."""
    for group in ask(url, "rules")["groups"]:
        for rule in group["rules"]:
            if rule["health"] != "ok":
                yield f"{rule['name']}: {rule['health']} {rule.get('lastError', '')}"


def live_errors(url, port=None):
    if port is not None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Collector)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    traced = TRACED if port is not None else ()
    wanted = dict.fromkeys(expressions())
    deadline = time.monotonic() + 120
    without, untraced, unwell = list(wanted), list(traced), True
    while (without or untraced or unwell) and time.monotonic() < deadline:
        time.sleep(1)
        without = [(where, expression) for where, expression in without
                   if not any(not math.isnan(float(series["value"][1]))
                              for series in query(url, expression))]
        untraced = list(lead_nowhere(url, traced))
        unwell = list(rule_errors(url))
    for where, expression in without:
        yield f"{where}: no data for {expression}"
    for metric in untraced:
        yield f"{metric}: no exemplar leads to a trace"
    yield from unwell
    yield from format_errors(url)
    for series in query(url, 'ALERTS{alertstate="firing"}'):
        # A busy machine is slow, and refuses.
        if not re.search("Latency|Refused|Goodput|ErrorsFast|ErrorsSlow", series["metric"]["alertname"]):
            yield f"fires on a healthy system: {series['metric']}"
    print(f"{len(wanted)} expressions were asked, {len(wanted) - len(without)} have data;"
          f" of {len(Collector.traces)} traces there are spans")


def main():
    if sys.argv[1:] == ["files"]:
        errors = [*alert_errors(), *mixing_errors(), *dashboard_errors()]
    elif sys.argv[1:2] == ["live"] and len(sys.argv) in (3, 4):
        errors = list(live_errors(sys.argv[2], *map(int, sys.argv[3:])))
    else:
        sys.exit(__doc__)
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
