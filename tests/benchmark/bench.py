#!/usr/bin/env python3
"""Measures the rows of rows.py, in rounds, and prints them as a table.

    tests/benchmark/bench.py --programs build/release/benchmark [--quick]

./bench.sh builds the programs and calls this; see ./bench.sh --help.
"""

import argparse
import dataclasses
import datetime
import json
import os
import re
import statistics
import subprocess
import sys

import rows as table_of_rows

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIMIT = "1200"  # seconds of a program, 124 if they are over
# What Google Benchmark appends to the name of a case.
SUFFIX = r"(/(min_time:[^/]*|iterations:[0-9]+|real_time|manual_time))*$"


class Unmeasured(Exception):
    """Why there is no number."""


def run(command, environment=None):
    """What a program prints, and those that it starts: all end in time."""
    done = subprocess.run(["timeout", "--kill-after=10", LIMIT, *command],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, **(environment or {})},
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        name = " ".join(os.path.basename(word) for word in command[:2])
        lines = (done.stderr or done.stdout).strip().splitlines() or [""]
        raise Unmeasured(f"{name} ended with {done.returncode}: "
                         f"{lines[-1][:150]}")
    return done.stdout


class Programs:
    """Runs cases of our benchmarks and of peers."""

    def __init__(self, folder, python, seconds):
        self.folder, self.seconds = folder, seconds
        self.python = python if os.access(python, os.X_OK) else sys.executable
        self.versions = {name: self.version(name)
                         for name in table_of_rows.PEERS}

    def version(self, package):
        try:
            return run([self.python, "-c", "import importlib.metadata as m; "
                        f"print(m.version('{package}'))"]).strip()
        except Unmeasured:
            return None

    def measure(self, program, names):
        """{case: {counter: value}} of the cases named."""
        if program in table_of_rows.PEERS:
            return self.measure_peer(program, names)
        pattern = "|".join(re.escape(name) for name in names)
        out = run([os.path.join(self.folder, program),
                   "--benchmark_format=json",
                   f"--benchmark_min_time={self.seconds}",
                   # One call before, as peers' scripts have: the first maps
                   # memory, and long cases have no other.
                   "--benchmark_min_warmup_time=0.01",
                   f"--benchmark_filter=^({pattern}){SUFFIX}"])
        cases = json.loads(out)["benchmarks"] if out else []  # no such cases
        return {re.sub(SUFFIX, "", case["name"]): case for case in cases}

    def measure_peer(self, program, names):
        if self.versions[program] is None:
            raise Unmeasured(f"{program} is not installed (--install-peers)")
        out = run([self.python,
                   os.path.join(FOLDER, "peers", f"with_{program}.py"),
                   f"--seconds={self.seconds}", *names],
                  {"OMP_NUM_THREADS": "2"})
        return json.loads(out.strip().splitlines()[-1])


def value_of(results, case):
    """The value of one case, or Unmeasured."""
    program = results.get(case.program, {})
    if isinstance(program, Unmeasured):
        raise program
    found = program.get(case.name)
    if found is None:
        raise Unmeasured(f"{case.program} has no case {case.name}")
    why = found.get("error") or found.get("error_message")
    if why:
        raise Unmeasured(f"{case.program}: {why}")
    return found[case.counter]


def values_of_round(row, results):
    """(ours, the best of what stands beside) in one round; Unmeasured in place
    of a value that there is not."""
    def value(case):
        try:
            return value_of(results, case)
        except Unmeasured as why:
            return why

    if row.unmeasured:
        return Unmeasured(row.unmeasured), None
    beside = [value(case) for case in row.beside]
    # Others may stand there all the same, as where torch.compile fails.
    values = [each for each in beside if not isinstance(each, Unmeasured)]
    if values:
        beside = [(min if row.goal.startswith("<=") else max)(values)]
    return value(row.ours), beside[0] if beside else None


def measure_round(rows, programs, backwards):
    """What all programs say that the rows of a group need."""
    names = {}
    for row in rows:
        if not row.unmeasured:
            for case in (row.ours, *row.beside):
                of_program = names.setdefault(case.program, [])
                if case.name not in of_program:
                    of_program.append(case.name)
    results = {}
    for program in sorted(names, reverse=backwards):
        try:
            results[program] = programs.measure(program, names[program])
        except Unmeasured as why:
            results[program] = why
    return results


def spread(values):
    """Half of the range over the median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def is_reached(ratio, goal):
    """Of a goal as in ">= 1.3"; None if there is no goal."""
    if not goal:
        return None
    sign, limit = goal.split()
    return ratio >= float(limit) if sign == ">=" else ratio <= float(limit)


def summary(row, rounds):
    """The record of a row with such values_of_round()."""
    record = {"group": row.group, "name": row.name, "unit": row.unit,
              "what": row.what, "goal": row.goal}
    failed = [value for values in rounds for value in values
              if isinstance(value, Unmeasured)]
    if failed:
        record["unmeasured"] = str(failed[0])
    for side, values in zip(("ours", "beside"), zip(*rounds)):
        if not any(v is None or isinstance(v, Unmeasured) for v in values):
            record[side] = statistics.median(values)
            record[side + "_rounds"] = values
    if failed:
        return record
    judged = record["ours_rounds"]
    if row.beside:
        judged = [mine / other for mine, other in rounds]
        record["ratio"] = statistics.median(judged)
    record["spread"] = spread(judged)
    record["reached"] = is_reached(statistics.median(judged), row.goal)
    return record


def number(value):
    """Three digits that count."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def aligned(lines):
    """Columns as wide as their widest cell; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]

    def cell(text, width):
        return text.rjust(width) if re.match(r"^[\d.,%]+$", text) \
            else text.ljust(width)

    return "\n".join("  ".join(map(cell, line, widths)).rstrip()
                     for line in lines)


def table(records):
    """The text of a result: ceilings, rows, and why some are not measured."""
    ceilings = [("CEILING", "", "", "spread")]
    lines = [("ROW", "ours", "", "beside", "", "ratio", "spread", "goal",
              "reached")]
    reasons = {}
    for record in records:
        reached = {True: "yes", False: "NO", None: ""}[record.get("reached")]
        if "unmeasured" in record:
            mark = reasons.setdefault(record["unmeasured"], len(reasons) + 1)
            reached = f"not measured [{mark}]"
        ours, half_range = number(record.get("ours")), record.get("spread")
        half_range = "" if half_range is None else f"{100 * half_range:.0f}%"
        if record["group"] == "ceilings":
            ceilings.append((record["name"], ours, record["unit"],
                             half_range or reached))
            continue
        lines.append((record["name"], ours, record["unit"],
                      number(record.get("beside")), record["what"],
                      number(record.get("ratio")), half_range, record["goal"],
                      reached))
    parts = [aligned(part) for part in (ceilings, lines) if len(part) > 1]
    if reasons:
        parts.append("\n".join(f"[{mark}] {reason}"
                               for reason, mark in reasons.items()))
    return "\n\n".join(parts)


def machine():
    """What a result has to say of where it was measured."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"^model name\s*:\s*(.*)$", file.read(), re.MULTILINE)

    def git(*words):
        try:
            return run(["git", "-C", FOLDER, *words]).strip()
        except (OSError, Unmeasured):
            return ""

    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(
                timespec="seconds"),
            "commit": git("rev-parse", "HEAD"),
            "changed": bool(git("status", "--porcelain",
                                "--untracked-files=no")),
            "cpu": model.group(1) if model else "unknown",
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0]}


def without_compiled(row):
    """A row without what takes minutes to compile; another stays."""
    beside = tuple(case for case in row.beside
                   if not case.name.endswith("/compiled"))
    return dataclasses.replace(row, beside=beside)


def chosen_rows(only, quick):
    rows = table_of_rows.ROWS
    if quick:
        rows = [without_compiled(row) for row in rows if row.quick]
    groups = list(dict.fromkeys(row.group for row in rows))
    wanted = only.split(",") if only else groups
    unknown = set(wanted) - set(groups)
    if unknown:
        sys.exit(f"no rows are named {', '.join(sorted(unknown))}; there are "
                 f"{', '.join(groups)}")
    return {group: [row for row in rows if row.group == group]
            for group in groups if group in wanted}


def json_text(result):
    """As JSON, with a line for each row."""
    head = json.dumps({k: v for k, v in result.items() if k != "rows"},
                      indent=1)
    rows = ",\n".join("  " + json.dumps(row) for row in result["rows"])
    return head[:-2] + ',\n "rows": [\n' + rows + "\n ]\n}\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True,
                        help="folder of our benchmarks")
    parser.add_argument("--python", default="build/peers/bin/python",
                        help="the Python that has the peers, else this one")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="groups of rows, with commas between")
    parser.add_argument("--json", help="write the result to this file, too")
    arguments = parser.parse_args()
    groups = chosen_rows(arguments.only, arguments.quick)
    programs = Programs(arguments.programs, arguments.python,
                        0.3 if arguments.quick else 1.0)
    result = {**machine(), "quick": arguments.quick,
              "rounds": 2 if arguments.quick else 5,
              "peers": programs.versions}
    if result["load"] > 0.5:
        print(f"Other programs run: the load is {result['load']:.1f}. Expect "
              "a wide spread.", file=sys.stderr)
    measured = {}
    for turn in range(result["rounds"]):
        for group, rows in groups.items():
            print(f"round {turn + 1} of {result['rounds']}: {group}",
                  file=sys.stderr, flush=True)
            results = measure_round(rows, programs, backwards=turn % 2 == 1)
            for row in rows:
                measured.setdefault(row, []).append(
                    values_of_round(row, results))
    result["rows"] = [summary(row, each) for row, each in measured.items()]
    print(f"{result['cpu']}, {result['cores']} cores, commit "
          f"{result['commit'][:12]}{' (changed)' if result['changed'] else ''},"
          f" {result['date']}\nPeers: " + ", ".join(
              f"{name} {version or 'not installed'}"
              for name, version in programs.versions.items()))
    print(f"Medians of {result['rounds']} rounds, with 2 threads unless a row "
          "says otherwise; spread is half of the range.\n")
    print(table(result["rows"]))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(json_text(result))


if __name__ == "__main__":
    main()
