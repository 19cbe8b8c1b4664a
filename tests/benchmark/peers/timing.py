"""What the scripts of peers share: arguments, clock and output."""

import argparse
import json
import time


def seconds_of(function, minimum):
    """Mean seconds of a call, over calls of at least `minimum` seconds in
    all, as Google Benchmark measures. One call before warms up."""
    function()
    calls, start = 0, time.perf_counter()
    while True:
        function()
        calls += 1
        passed = time.perf_counter() - start
        if passed >= minimum:
            return passed / calls


def main(description, measure):
    """Prints {case: {counter: value} or {"error": why}} for the cases named.
    `measure(case, arguments)` returns a case's counters."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0,
                        help="measure each case for so long (default 1)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", default="build/bench",
                        help="folder for models and compiled code")
    parser.add_argument("cases", nargs="+")
    arguments = parser.parse_args()
    results = {}
    for case in arguments.cases:
        try:
            results[case] = measure(case, arguments)
        except Exception as error:  # pylint: disable=broad-except
            text = str(error).strip() or type(error).__name__
            results[case] = {"error": text.splitlines()[0][:200]}
    print(json.dumps(results))
