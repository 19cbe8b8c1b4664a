#!/bin/bash
# Serves a model on six expert workers, of which three leave and come back, and a
# node with two is drained and killed, under translations that keep coming at
# 70 % of what the system can do.
#
#   tests/fault/resize.sh --seed S --programs DIR
#
#   --seed S           of the order in which workers leave (1)
#   --seconds N        repeats that for so long (once)
#   --programs DIR     folder of the programs (build/dev/bin)
#   --load PROGRAM     translate_load (build/dev/benchmark/translate_load)
#   --rate R           translations a second (0: 70 % of what is measured first)
#   --leave_timeout T  of the workers (30s); with 0s it is seen what for they wait
#
# Two routers behind one client channel, the workers, two on each of three nodes,
# and the coordinator run as processes. Nothing is retried by the client. What
# must hold:
#
#   resize    1 replica, SIGTERM of three workers, one after the other, and three
#             new ones: 0 failed, 0 degraded
#   drain     1 replica, SIGTERM of both workers of a node at the same time, and
#             two new ones: 0 failed, 0 degraded
#   kill      2 replicas, SIGKILL of both workers of a node at the same time, and
#             two new ones: 0 failed, 0 degraded, for no replicas share a node
#
# Workers that leave must have been let go. Prints a line for each; "recovery" is
# the longest time from a worker's start to its having experts. Ends with 0 if
# all held, 1 if not, 2 without result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

seed=1 seconds=0 programs=build/dev/bin rate=0 leave_timeout=30s
load=build/dev/benchmark/translate_load
take_flags seed seconds programs load rate leave_timeout -- "$@"
readonly lease_ms=2000

# shellcheck source=tests/fault/processes.sh
source tests/fault/processes.sh
# shellcheck source=tests/fault/steady_load.sh
source tests/fault/steady_load.sh
require "$load"

workers=(worker-0 worker-1 worker-2 worker-3 worker-4 worker-5)
for i in 0 1 2 3 4 5; do
  worker_flags[worker-$i]="--failure_domain=zone/node-$((i / 2))
    --leave_timeout=$leave_timeout"
done

# SIGNAL NAME...: ends workers at the same time and returns when all are gone.
end_all() {
  local name signal=$1
  shift
  for name in "$@"; do kill "-$signal" "${pids[$name]}"; done
  for name in "$@"; do
    while kill -0 "${pids[$name]}" 2> /dev/null; do sleep 0.01; done
  done
}

# NAME...: starts workers and returns when the experts are on all six.
start_all() {
  local name back
  back=$(now)
  for name in "$@"; do start "$name"; done
  for name in "$@"; do settle 6 "$name" "$back"; done
  recovered $((settled - back))
}

resize() {
  local name leaving
  mapfile -t leaving < <(printf '%s\n' "${workers[@]}" |
    shuf -n 3 --random-source=<(yes "$RANDOM"))
  for name in "${leaving[@]}"; do
    pause $((RANDOM % 500))
    end_all TERM "$name"
  done
  settle 3
  start_all "${leaving[@]}"
}

# SIGNAL: ends the workers of a node.
node() {
  local i=$((RANDOM % 3 * 2))
  pause $((RANDOM % 500))
  end_all "$1" "worker-$i" "worker-$((i + 1))"
  settle 4
  start_all "worker-$i" "worker-$((i + 1))"
}

# NAME COMMAND...: repeats the command under load.
phase() {
  local name=$1 end
  shift
  recovery=0
  end=$(($(now) + seconds * 1000 / 3))
  begin_load "$name"
  "$@"
  while (($(now) < end)); do "$@"; done
  recovery="$recovery ms" end_load "$name" none
}

serve_names 1
echo "seed $seed, $rate translations a second"
print_head
phase resize resize
phase drain node TERM
if grep -hs "leaves with experts" "$scratch"/worker-*.log >&2; then
  failures=$((failures + 1))
fi
client load names "$scratch/checkpoints" --replicas=2 &> /dev/null
settle 6
sharing=$(client describe --json |
  grep -cE '"experts_sharing_domain": ?[1-9]' || true)
[[ $sharing == 0 ]] || give_up "replicas share a node"
phase kill node KILL
((failures == 0))
