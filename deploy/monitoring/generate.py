#!/usr/bin/env python3
"""Makes the Grafana dashboards in deploy/monitoring/dashboards, and of rules.yml
the object that the Prometheus Operator reads.

  deploy/monitoring/generate.py            writes them
  deploy/monitoring/generate.py --check    exits with 1 where they differ

A dashboard is a list of questions; a panel answers one.
"""

import json
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
OPERATOR_RULES = FOLDER.parent / "kubernetes/components/monitoring/rules.yaml"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "[$__rate_interval]"
WITH_TRACES = {"exemplar": True}  # dots that lead to a trace each


def of_namespaces(expression):
    """Of the systems that a dashboard is to show: each metric gets the matcher."""
    def scoped(found):
        quoted, metric, matchers = found.groups()
        if quoted:
            return quoted
        return f'{metric}{{namespace=~"$namespace"{", " + matchers if matchers else ""}}}'
    return re.sub(r'("[^"]*")|\b((?:gshard|process)[\w:]*)(?:\{([^{}]*)\})?', scoped, expression)


def panel(title, description, unit, *targets, kind="timeseries", **more):
    """`targets` are (legend, expression)."""
    options = more.pop("options", {})
    return {
        "type": kind, "title": title, "description": description,
        "datasource": SOURCE, "options": options,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, **more.pop("defaults", {})},
                        "overrides": []},
        "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE,
                     "expr": of_namespaces(expression), "legendFormat": legend,
                     **more.get("target", {})}
                    for i, (legend, expression) in enumerate(targets)],
        **({"transformations": more["transformations"]}
           if "transformations" in more else {}),
    }


def quantiles(metric, by=""):
    """The median and the 99th percentile of a histogram."""
    return [(f"p{percent}{' {{' + by + '}}' if by else ''}",
             f"histogram_quantile({percent / 100}, sum by (le{', ' + by if by else ''}) "
             f"(rate({metric}_bucket{RATE})))")
            for percent in (50, 99)]


def per(amount, tokens, by=1):
    """An amount for a million tokens, where `amount` and `tokens` are rates."""
    return f"1e6 / {by} * {amount} / ({tokens} > 0)"


def load_of_experts(job):
    """Rows of each expert over the mean of its layer's: 1 is even. The layer is
    named with its model, if that is served, and its number of experts."""
    rows = ("sum by (model, layer, experts, expert) "
            f'(rate(gshard_expert_rows_total{{job="{job}", expert!=""}}[5m]))')
    load = f"{rows} / on (model, layer, experts) group_left () (avg by (model, layer, experts) ({rows}) > 0)"
    named = f'label_join({load}, "layer", " of ", "layer", "experts")'
    return f'label_join({named}, "layer", " ", "model", "layer")'


def heat_map(title, description, job):
    """Layers down, experts across."""
    return panel(
        title, description, "none", ("", load_of_experts(job)), kind="table",
        target={"instant": True, "format": "table"},
        transformations=[{"id": "groupingToMatrix", "options": {
            "rowField": "layer", "columnField": "expert", "valueField": "Value"}}],
        defaults={"decimals": 1, "custom": {"cellOptions": {"type": "color-background"}},
                  "color": {"mode": "continuous-BlYlRd"}, "max": 4})


def rate(metric, by="", where=""):
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{where}{RATE}))"


SERVING_CPU = rate("process_cpu_seconds_total", where='{job=~"gshard_router|gshard_expert_worker"}')
ALL_CPU = rate("process_cpu_seconds_total", where='{job=~"$job"}')
TRANSLATED = rate("gshard_decoded_tokens_total")
TRAINED = rate("gshard_train_tokens_total")

TRANSLATION = [
    panel("Are translations answered?", "Calls and messages of streams a second, by code.", "reqps",
          ("{{code}}", rate("gshard_translate_requests_total", "code"))),
    panel("Is the month's error budget safe?",
          "Share of requests that fail (objective 0.1 %), and of Translate calls that take over 2.5 s (objective 1 %), "
          "in the last hour.",
          "percentunit", ("failed", "gshard:translate_errors:ratio_rate1h"),
          ("slow", "gshard:translate_slow:ratio_rate1h"), ("not translated, refusals included",
                                                          "1 - gshard:translate_goodput:ratio_rate5m")),
    panel("How long do they take?", "From the first byte of a call to the last of its answer; messages of streams, of "
          "which clients keep many in flight, from arrival to answer.", "s",
          *quantiles("gshard_translate_duration_seconds"),
          *((f"{legend} of streams", expression) for legend, expression
            in quantiles("gshard_stream_request_duration_seconds")), target=WITH_TRACES),
    panel("Which models are used?", "Tokens of translations a second, by model.", "none",
          ("{{model}}", rate("gshard_decoded_tokens_total", "model", '{model!=""}'))),
    panel("Which models are slow?", "Time of Translate calls by model.", "s",
          *quantiles("gshard_translate_duration_seconds", "model"), target=WITH_TRACES),
    panel("What is refused, and why?", "Requests and messages of streams that admission did not take.", "reqps",
          ("{{verdict}}", rate("gshard_admissions_total", "verdict", '{verdict!="admitted"}'))),
    panel("Is work waiting?", "Time until all accepted work is done, by router; how long sentences waited.", "s",
          ("{{instance}}", 'gshard_estimated_wait_seconds{job=~"$job"}'),
          *quantiles("gshard_queue_duration_seconds"), target=WITH_TRACES),
    panel("Where does the time go?",
          "Seconds a second, all routers together: waiting for a batch, and the stages of translation.", "none",
          ("queue", rate("gshard_queue_duration_seconds_sum")),
          ("{{stage}}", rate("gshard_stage_duration_seconds_sum", "stage"))),
    panel("Do workers keep up?", "Time of a segment call on a worker: waiting for a thread, and running.", "s",
          *quantiles("gshard_expert_call_duration_seconds", "stage"), target=WITH_TRACES),
    panel("Which workers are slow or lost?", "Calls made again elsewhere: since the worker failed, or is late.", "ops",
          ("retries {{worker}}", rate("gshard_expert_call_retries_total", "worker")),
          ("hedges {{worker}}", rate("gshard_expert_call_hedges_total", "worker"))),
    panel("Are answers degraded?", "Share of the choices of tokens for which no worker was left.", "percentunit",
          ("lost", rate("gshard_expert_tokens_lost_total") + " / ("
           + rate("gshard_expert_tokens_total", where='{job="gshard_router"}') + " > 0)")),
    panel("Would the loss of a worker degrade them?", "Experts of served models.", "none",
          ("below their replicas", "sum(gshard_served_experts_below_replicas)"),
          ("on no worker", "sum(gshard_served_experts_unavailable)")),
    panel("Who is ready?", "Processes by role; members as the coordinator counts them.", "none",
          ("{{job}} ready", 'sum by (job) (gshard_ready{job=~"$job"})'),
          ("{{role}} joined", "sum by (role) (gshard_members)")),
]

TRAINING = [
    panel("Does training learn?", "Cross-entropy in nats a token.", "none", ("training", "gshard_train_loss"),
          ("held out", "gshard_validation_loss > 0")),
    panel("How fast does it train?", "Target tokens a second.", "none", ("tokens", TRAINED)),
    panel("How long is a step?", "From commit to commit.", "s", *quantiles("gshard_train_step_duration_seconds"),
          target=WITH_TRACES),
    panel("Where does the time go?",
          "Seconds a second of the running job. What is missing to 1 is loading, recovery and validation.", "none",
          ("{{phase}}", rate("gshard_train_phase_seconds_total", "phase")),
          defaults={"max": 1, "custom": {"stacking": {"mode": "normal"}, "fillOpacity": 30}}),
    panel("Is work lost?", "Attempts to load a job, microbatches made again, steps that were not finite.", "none",
          ("attempts", "sum(increase(gshard_train_attempts_total[1h]))"),
          ("microbatches", "sum(increase(gshard_train_microbatches_retried_total[1h]))"),
          ("steps", "sum(increase(gshard_train_nonfinite_steps_total[1h]))")),
    panel("What would a crash of everything cost?",
          "Time since the last checkpoint, or since the job began to train from it or from nothing.", "s",
          ("age", "time() - (gshard_checkpoint_last_success_timestamp_seconds > 0) and gshard_train_running == 1")),
    panel("Is it stable?", "Norm of the gradient before clipping; largest logits, of the output and of gates.", "none",
          ("gradient", "gshard_train_gradient_norm"), ("output", "gshard_train_logit_magnitude"),
          ("gates", "max(gshard_train_gate_logit_magnitude)")),
    panel("How is the learning rate?", "Of the last step.", "sci", ("", "gshard_train_learning_rate")),
    panel("What do jobs do?", "Jobs that are not over, by state, and those that ended within the hour.", "none",
          ("{{state}}", "sum by (state) (gshard_jobs)"),
          ("{{state}}, last hour", "sum by (state) (increase(gshard_jobs_ended_total[1h]))")),
]

EXPERTS = [
    panel("Are experts used evenly?",
          "Load of the busiest expert over the mean, by layer; 1 is even. In training of the last step. At routers of "
          "the last 15 minutes, if they were busy; needs --per_expert_metrics.", "none",
          ("{{job}} {{layer}}", 'max by (job, layer) (gshard_expert_load_imbalance_ratio{job=~"$job", '
           'job="gshard_coordinator"} and on (job, instance) gshard_train_running == 1)'),
          ("{{job}} {{model}} {{layer}} of {{experts}}", 'gshard:expert_load_imbalance:ratio_increase15m{job=~"$job"}')),
    panel("What is the balance loss?", "The last step's mean over layers; 1 is even, the number of experts the worst.",
          "none", ("", "gshard_balance_loss")),
    panel("Do tokens find their experts full?", "Share of choices that got no slot, by layer.", "percentunit",
          ("{{job}} {{layer}}", 'gshard:expert_tokens_overflowed:ratio_rate5m{job=~"$job"}')),
    panel("Which experts are dead?",
          "Experts that no token chose within the hour, by layer. Needs --per_expert_metrics.", "none",
          ("{{job}} {{model}} {{layer}} of {{experts}}",
           "sum by (job, model, layer, experts) (sum by (job, model, layer, experts, expert) "
           '(increase(gshard_expert_rows_total{job=~"$job", expert!=""}[1h])) == bool 0)')),
    heat_map("Which experts are hot, at routers?",
             "Load of each expert over its layer's mean, translations and microbatches together. Needs "
             "--per_expert_metrics of routers.", "gshard_router"),
    heat_map("Which experts are hot, in training?",
             "The same of committed steps. Needs --per_expert_metrics of the coordinator.", "gshard_coordinator"),
    panel("How much do workers hold?", "Parameters, optimizer state, gradients and what microbatches keep.", "bytes",
          ("{{instance}}", "gshard_worker_session_bytes")),
    panel("Which workers are busy?", "Seconds of segments a second, by worker and kind.", "none",
          ("{{instance}} {{kind}}", 'sum by (instance, kind) '
           f'(rate(gshard_expert_call_duration_seconds_sum{{stage="run"}}{RATE}))')),
]

COST = [
    panel("What does a million translated tokens cost?",
          "At the variable system_price, what all processes cost an hour, in your currency. Tokens of all hypotheses.",
          "none", ("price", f"1e6 / 3600 * $system_price / ({TRANSLATED} > 0)")),
    panel("And a million trained tokens?", "Likewise; where the system does both, each as if it were alone.", "none",
          ("price", f"1e6 / 3600 * $system_price / ({TRAINED} > 0)")),
    panel("How many core hours do they take?", "CPU time used for a million tokens; of routers and workers for "
          "translated ones.", "none", ("translated", per(SERVING_CPU, TRANSLATED, by=3600)),
          ("trained", per(ALL_CPU, TRAINED, by=3600))),
    panel("How much traffic?", "Bytes between routers and workers for a million tokens.", "bytes",
          ("translated", per(rate("gshard_exchange_bytes_total", where='{job="gshard_router"}'), TRANSLATED)),
          ("trained", per(rate("gshard_exchange_bytes_total", where='{job="gshard_router"}'), TRAINED))),
    panel("Who uses the CPUs?", "Cores in use, by role.", "none",
          ("{{job}}", rate("process_cpu_seconds_total", "job", '{job=~"$job"}'))),
    panel("Who uses the memory?", "Resident memory by role, and the tensors in it.", "bytes",
          ("{{job}}", 'sum by (job) (process_resident_memory_bytes{job=~"$job"})'),
          ("{{job}} tensors", 'sum by (job) (gshard_tensor_bytes{job=~"$job"})')),
    panel("How full are batches?", "Hypotheses that a decoding step works on: the more, the cheaper each.", "none",
          ("rows", rate("gshard_batch_rows_sum") + " / (" + rate("gshard_batch_rows_count") + " > 0)")),
]


def variable(name, label, kind, **more):
    return {"name": name, "label": label, "type": kind, **more}


def dashboard(uid, title, panels, *variables):
    for i, one in enumerate(panels):
        one["id"] = i + 1
        one["gridPos"] = {"x": 12 * (i % 2), "y": 8 * (i // 2), "w": 12, "h": 8}
    return {
        "uid": uid, "title": title, "tags": ["gshard"], "schemaVersion": 39,
        "editable": True, "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            variable("datasource", "Data source", "datasource", query="prometheus"),
            # Series of Compose and bare hosts have none, which `.*` matches, too.
            variable("namespace", "Namespace", "query", datasource=SOURCE,
                     query="label_values(gshard_build_info, namespace)", refresh=2,
                     multi=True, includeAll=True, allValue=".*",
                     current={"text": "All", "value": "$__all"}),
            variable("job", "Job", "query", datasource=SOURCE,
                     query="label_values(gshard_build_info, job)", refresh=2,
                     multi=True, includeAll=True, allValue="gshard_.*",
                     current={"text": "All", "value": "$__all"}),
            *variables]},
        "panels": panels,
    }


def text(board):
    """A panel a line, so that a change of one is a change of one line."""
    panels = ",\n".join(json.dumps(one, ensure_ascii=False) for one in board["panels"])
    frame = json.dumps({**board, "panels": "PANELS"}, ensure_ascii=False, indent=2)
    return frame.replace('"PANELS"', f"[\n{panels}\n  ]") + "\n"


DASHBOARDS = {
    "translation": dashboard("gshard-translation", "GShard: is translation healthy?", TRANSLATION),
    "training": dashboard("gshard-training", "GShard: is training healthy?", TRAINING),
    "experts": dashboard("gshard-experts", "GShard: which experts are hot or dead?", EXPERTS),
    "cost": dashboard("gshard-cost", "GShard: what does it cost?", COST,
                      variable("system_price", "Price of the system an hour", "textbox", query="1",
                               current={"text": "1", "value": "1"})),
}


def operator_rules():
    """rules.yml as a PrometheusRule: its groups, two columns further in."""
    groups = (FOLDER / "rules.yml").read_text().partition("\ngroups:\n")[2]
    return ("# Made by deploy/monitoring/generate.py of rules.yml there.\n"
            "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n"
            "  name: gshard\n  labels: {app.kubernetes.io/part-of: gshard}\nspec:\n  groups:\n"
            + "".join(f"  {line}" if line.strip() else line
                      for line in groups.splitlines(keepends=True)))


def main():
    check = sys.argv[1:] == ["--check"]
    if not check and sys.argv[1:]:
        sys.exit(__doc__)
    wanted = {FOLDER / f"dashboards/{name}.json": text(board) for name, board in DASHBOARDS.items()}
    wanted[OPERATOR_RULES] = operator_rules()
    stale = [path for path in {*FOLDER.glob("dashboards/*.json"), *wanted}
             if not path.exists() or path.read_text() != wanted.get(path)]
    for path in sorted(stale):
        if check:
            print(f"{path}: is not what generate.py makes; run it", file=sys.stderr)
        elif path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
