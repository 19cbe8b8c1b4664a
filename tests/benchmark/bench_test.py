#!/usr/bin/env python3
"""Tests of bench.py that measure nothing: medians, verdicts, the table."""

import json
import os
import re
import unittest

import bench
import history
import rows
from rows import Case, Row

FOLDER = os.path.dirname(os.path.abspath(__file__))

OURS, OTHER = Case("mine", "a", "x"), Case("other", "b", "x")


def results(mine, other):
    return {"mine": {"a": {"x": mine}}, "other": other}


class BenchTest(unittest.TestCase):
    def summary(self, row, *rounds):
        return bench.summary(row, [bench.values_of_round(row, each)
                                   for each in rounds])

    def test_ratio_is_the_median_of_ratios_of_rounds(self):
        row = Row("g", "n", "u", OURS, (OTHER,), "peer", ">= 1.5")
        # The machine was slow in the second round, for both.
        record = self.summary(row, *(results(mine, {"b": {"x": other}})
                                     for mine, other in ((4, 2), (2, 1),
                                                         (6, 4))))
        self.assertEqual((record["ours"], record["beside"]), (4, 2))
        self.assertEqual(record["ratio"], 2)
        self.assertEqual(record["spread"], 0.125)  # 1.5 to 2, around 2
        self.assertTrue(record["reached"])

    def test_quick_leaves_out_what_takes_long(self):
        every, quick = (bench.chosen_rows(None, quick)
                        for quick in (False, True))
        self.assertEqual(list(every), list(quick))  # the groups
        self.assertGreater(len(every["job"]), len(quick["job"]))
        self.assertFalse(any(case.name.endswith("/compiled")
                             for rows_of in quick.values()
                             for row in rows_of for case in row.beside))

    def test_the_best_of_several_stands_beside(self):
        row = Row("g", "n", "u", OURS,
                  (OTHER, Case("mine", "a", "y"), Case("other", "c", "x")),
                  goal=">= 1")
        record = self.summary(row, {
            "mine": {"a": {"x": 3, "y": 7}},
            "other": {"b": {"x": 4}, "c": {"error": "does not compile"}}})
        self.assertEqual(record["beside"], 7)
        self.assertFalse(record["reached"])

    def test_a_goal_may_be_a_limit_of_ours_alone(self):
        row = Row("g", "n", "us", OURS, goal="<= 20")
        self.assertTrue(self.summary(row, results(20, {}))["reached"])
        self.assertFalse(self.summary(row, results(21, {}))["reached"])

    def test_what_has_no_value_says_why(self):
        row = Row("g", "n", "u", OURS, (OTHER,), goal=">= 1")
        for other, why in ((bench.Unmeasured("no peer"), "no peer"),
                           ({}, "other has no case b"),
                           ({"b": {"error": "bad"}}, "other: bad")):
            record = self.summary(row, results(1, other))
            self.assertEqual(record["unmeasured"], why)
            self.assertEqual(record["ours"], 1)
            self.assertNotIn("reached", record)
        record = self.summary(Row("g", "n", "u", unmeasured="no harness"), {})
        self.assertEqual(record["unmeasured"], "no harness")

    def test_table(self):
        records = [
            self.summary(Row("ceilings", "c", "GB/s", OURS), results(1234, {})),
            self.summary(Row("g", "fast", "u", OURS, (OTHER,), "peer", ">= 1"),
                         results(8, {"b": {"x": 2}})),
            self.summary(Row("g", "slow", "u", OURS, (OTHER,), "peer", ">= 9"),
                         results(8, {"b": {"x": 2}})),
            self.summary(Row("g", "none", "u", goal=">= 1", unmeasured="why"),
                         {})]
        self.assertEqual(bench.table(records), """\
CEILING               spread
c        1,234  GB/s      0%

ROW   ours     beside        ratio  spread  goal  reached
fast     8  u       2  peer      4      0%  >= 1  yes
slow     8  u       2  peer      4      0%  >= 9  NO
none        u                               >= 1  not measured [1]

[1] why""")

    def test_json(self):
        """All of it, and short enough to be a file of this project."""
        result = {"quick": True, "peers": {"a": "1"},
                  "rows": [{"name": "b", "ours_rounds": [1.5, 2]}] * 3}
        text = bench.json_text(result)
        self.assertEqual(json.loads(text), result)
        self.assertEqual(text.count('"name"'), 3)
        self.assertEqual(len(re.findall(r'\n  \{"name".*\}', text)), 3)

    def test_history(self):
        self.assertIn("no results yet", history.draw([]))
        row = {"group": "g", "name": "r < s", "goal": "<= 20", "ours": 10}
        drawn = history.draw([{"date": date, "cpu": "c", "commit": "d",
                               "rows": [row, {**row, "unmeasured": "w"}]}
                              for date in ("2027-01-01", "2027-01-02")])
        self.assertIn("r &lt; s: 2.00", drawn)
        self.assertEqual(drawn.count("<circle"), 2)

    def test_rows(self):
        """Names are unique, and programs, scripts and goals are there."""
        self.assertEqual(len({row.name for row in rows.ROWS}), len(rows.ROWS))
        with open(os.path.join(FOLDER, "CMakeLists.txt"),
                  encoding="utf-8") as file:
            built = set(re.findall(r"gshard_benchmark\((\w+)", file.read()))
        for row in rows.ROWS:
            self.assertRegex(row.goal, r"^([<>]= \d+(\.\d+)?)?$", row.name)
            self.assertNotEqual(row.ours is None, not row.unmeasured, row.name)
            for case in (row.ours, *row.beside):
                if case is not None and case.program not in built:
                    self.assertIn(case.program, rows.PEERS, row.name)
        for peer in rows.PEERS:
            self.assertTrue(os.path.exists(
                os.path.join(FOLDER, "peers", f"with_{peer}.py")), peer)


if __name__ == "__main__":
    unittest.main()
