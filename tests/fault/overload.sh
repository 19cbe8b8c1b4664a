#!/bin/bash
# Sends a router five times as many translations as it can do, with deadlines,
# and looks at what becomes of them.
#
#   tests/fault/overload.sh --seconds 60
#
#   --seconds T      of overload (60); each lighter load has a fifth of that
#   --times N        how many times the capacity (5)
#   --deadline MS    of each call (2000)
#   --seed S         of times and sentences (1)
#   --programs DIR   folder of the programs (build/dev/bin)
#   --load PROGRAM   translate_load (build/dev/benchmark/translate_load)
#
# A router, two expert workers and the coordinator run as processes. The
# capacity is what 32 calls under way have done; then calls come at random
# times, whether or not earlier ones are done. What must hold:
#
#   goodput   answers in time, a second, are 90 % or more of the most that any
#             load reached
#   late      of those taken, 1 in 20 or fewer were not answered in time, and
#             their p99 is within the deadline and 100 ms for its news
#   refused   of those refused, 99 in 100 were told so within 50 ms
#   memory    the router's is never 5 % above the most of the first third
#
# Prints a line for each load; "refused" is RESOURCE_EXHAUSTED. Ends with 0 if
# all held, 1 if not, 2 without result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

seconds=60 times=5 deadline=2000 seed=1 programs=build/dev/bin
load=build/dev/benchmark/translate_load
take_flags seconds times deadline seed programs load -- "$@"
# shellcheck source=tests/fault/processes.sh
source tests/fault/processes.sh
require "$load"
# Refusing takes a fraction of a millisecond of each side's processors, which
# they share here: translating takes so much more that it counts little.
model_width=512
model_steps=3
readonly texts="Vereinigte Staaten und St. Pierre und Miquelon,Deutschland"

# FILE QUANTILE: of sorted numbers, one a line.
quantile() {
  awk -v q="$2" '{ all[NR] = $1 } END {
    print NR ? all[int(q * (NR - 1)) + 1] : 0 }' "$1"
}

# SECONDS FLAGS: loads the router and prints the line. Sets `goodput`, `taken`,
# `late`, `p99` and `refused_p99`.
run_load() {
  local time=$1
  shift
  "$load" --routers="$routers" --seconds="$time" --seed="$seed" --beam=8 \
    --texts="$texts" \
    --deadline_ms="$deadline" --log="$scratch/calls" "$@" \
    > "$scratch/load" 2> "$scratch/load.err" || give_up "the load failed"
  awk '$3 != 8 { print $2 }' "$scratch/calls" | sort -n > "$scratch/taken"
  awk '$3 == 8 { print $2 }' "$scratch/calls" | sort -n > "$scratch/refused"
  local answered other
  answered=$(awk '$3 == 0' "$scratch/calls" | wc -l)
  late=$(awk '$3 == 4' "$scratch/calls" | wc -l)
  other=$(awk '$3 != 0 && $3 != 4 && $3 != 8' "$scratch/calls" | wc -l)
  ((other == 0)) || give_up "$other calls failed: $(head -n 3 "$scratch/load.err")"
  taken=$(wc -l < "$scratch/taken")
  p99=$(quantile "$scratch/taken" 0.99)
  refused_p99=$(quantile "$scratch/refused" 0.99)
  # From the first call to the last one's end.
  goodput=$(awk -v n="$answered" 'NR == 1 { first = $1 - $2 } { last = $1 }
    END { printf "%.1f", 1000 * n / (last - first) }' "$scratch/calls")
  printf '%8s %8d %9d %6d %8d %9s %7.0f ms %7.0f ms %7.1f ms %7.1f ms\n' \
    "$name" "$(wc -l < "$scratch/calls")" "$answered" "$late" \
    "$(wc -l < "$scratch/refused")" "$goodput" \
    "$(quantile "$scratch/taken" 0.5)" "$p99" \
    "$(quantile "$scratch/refused" 0.5)" "$refused_p99"
}

# Prints the greatest of what it reads.
most() { sort -g | tail -n 1; }

serve 1 2
printf '%8s %8s %9s %6s %8s %9s %10s %10s %10s %10s\n' load calls answered \
  late refused a_second p50 p99 refused_50 refused_99
short=$(((seconds + 4) / 5))
deadline=60000 name=warm-up run_load $short --rate=0 --calls=32
deadline=60000 name=closed run_load $short --rate=0 --calls=32
capacity=$goodput
best=$goodput
for factor in 0.7 1 1.5; do
  rate=$(awk -v f=$factor -v c="$capacity" 'BEGIN { print f * c }')
  name=$factor run_load $short --rate="$rate"
  best=$(printf '%s\n' "$best" "$goodput" | most)
done

rate=$(awk -v f="$times" -v c="$capacity" 'BEGIN { print f * c }')
while sleep 1; do resident router-0; done > "$scratch/resident" &
sampler=$!
pids[sampler]=$sampler
name=$times run_load "$seconds" --rate="$rate"
kill "$sampler"
unset 'pids[sampler]'
best=$(printf '%s\n' "$best" "$goodput" | most)

samples=$(wc -l < "$scratch/resident")
early=$(head -n $(((samples + 2) / 3)) "$scratch/resident" | most)
all=$(most < "$scratch/resident")
echo "capacity $capacity a second; memory of the router, KiB: $early in the" \
  "first third, $all at most"

failures=0
# NAME CONDITION: of awk.
check() {
  if awk "BEGIN { exit !($2) }"; then
    echo "$1: ok ($2)"
  else
    echo "$1: FAILED ($2)"
    failures=$((failures + 1))
  fi
}
check goodput "$goodput >= 0.9 * $best"
check late "$late <= 0.05 * $taken && $p99 <= $deadline + 100"
check refused "$refused_p99 <= 50"
check memory "$all <= 1.05 * $early"
((failures == 0))
