#!/bin/bash
# Sends many requests of all kinds, good and bad, by clients that give up and
# are killed, and looks whether anything of them is left.
#
#   tests/fault/soak.sh --requests 100000
#
#   --requests N     calls and messages of streams (100000)
#   --warm-up N      that come before, and set the numbers to come back to (half
#                    of --requests, 2000 at least): memory grows until kernels
#                    and blocks of all sizes that come have been made once.
#                    Batches as large as they get come last
#   --growth P       percent that memory may grow by (2)
#   --seed S         of all that is random (1)
#   --programs DIR   folder of the programs (build/dev/bin)
#   --mixed PROGRAM  mixed_requests (build/dev/tests/mixed_requests)
#
# A router, two expert workers and the coordinator run as processes. One client
# sends all the time, another one is killed every other second, in the midst of
# its calls. When they have gone, nothing may be in flight, queued or in a
# batch; open files and memory of each process, and tensors in use and calls
# under way of router and workers, be as after the warm-up. Streams between
# members are calls, too.
#
# Prints the numbers. Ends with 0 if all held, 1 if not, 2 without result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

requests=100000 warm_up=0 growth=2 seed=1 programs=build/dev/bin
mixed=build/dev/tests/mixed_requests
take_flags requests warm-up growth seed programs mixed -- "$@"
((warm_up > 0)) || warm_up=$((requests / 2 > 2000 ? requests / 2 : 2000))
# shellcheck source=tests/fault/processes.sh
source tests/fault/processes.sh
require "$mixed" curl
RANDOM=$seed
sends=0 kills=0

# NAME THREADS: starts a client.
send() {
  sends=$((sends + 1))
  "$mixed" --router="$routers" --requests=1000000000 --threads="$2" \
    --seed=$((seed + sends)) > /dev/null 2>> "$scratch/$1.log" &
  pids[$1]=$!
  disown "$!"
}

# Prints the requests that the router has counted.
served() { metric router-0 gshard_translate_requests_total; }

# N: sends so many requests.
soak() {
  local until
  until=$(($(served) + $1))
  send steady 16
  while (($(served) < until)); do
    send victim 8
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    kill -0 "${pids[steady]}" 2> /dev/null || give_up "the client ended"
    end KILL victim
    kills=$((kills + 1))
  done
  end KILL steady
  kills=$((kills + 1))
}

# Translates in the largest batches there are: the router's memory grows with
# the most that was ever in use, which chance brings late.
fill_batches() {
  printf 'Niederländisch, wie es dort wohl heißt\n%.0s' {1..2000} |
    client translate --model=names --from=de --beam=32 --n_best=32 \
      --sentences_per_call=20 --calls=64 --file=- > "$scratch/filled" ||
    give_up "the largest batches were not translated"
}

readonly gauges=(
  router-0:gshard_requests_in_flight router-0:gshard_requests_queued
  router-0:gshard_queued_tokens router-0:gshard_batch_sentences
  router-0:gshard_batch_positions router-0:gshard_open_streams
  worker-0:gshard_worker_queue_calls worker-0:gshard_worker_queue_bytes
  worker-1:gshard_worker_queue_calls worker-1:gshard_worker_queue_bytes)
readonly processes=(router-0 worker-0 worker-1 coordinator)

# Returns when nothing is under way; after 20 s says what is.
settle() {
  local try gauge value left
  for ((try = 0; try < 100; ++try)); do
    left=
    for gauge in "${gauges[@]}"; do
      value=$(metric "${gauge%%:*}" "${gauge#*:}")
      [[ $value == 0 ]] || left+=" $gauge $value"
    done
    [[ -n $left ]] || return 0
    sleep 0.2
  done
  echo "left:$left"
  return 1
}

failures=0
serve 1 2
soak "$warm_up"
fill_batches
settle || failures=$((failures + 1))
sleep 2  # until connections of clients that were killed are gone
declare -A files=() memory=() tensors=() calls=()
for name in "${processes[@]}"; do
  files[$name]=$(open_files "$name")
  memory[$name]=$(resident "$name")
done
for name in router-0 worker-0 worker-1; do
  tensors[$name]=$(metric "$name" gshard_tensor_bytes)
  calls[$name]=$(metric "$name" gshard_server_calls)
done
begin=$(date +%s)
before=$(served)
soak "$requests"
settle || failures=$((failures + 1))
sleep 2
echo "$(($(served) - before)) requests in $(($(date +%s) - begin)) s," \
  "$kills clients were killed"
curl -sf "http://${metrics[router-0]}/metrics" |
  grep '^gshard_translate_requests_total' | grep -v ' 0$'
printf '%-12s %12s %12s %14s %14s %8s\n' process files_before files_after \
  KiB_before KiB_after growth
for name in "${processes[@]}"; do
  open=$(open_files "$name")
  kib=$(resident "$name")
  percent=$(awk -v a="${memory[$name]}" -v b="$kib" \
    'BEGIN { printf "%.2f", 100 * (b - a) / a }')
  verdict=ok
  ((open <= files[$name])) || verdict=FAILED
  awk -v p="$percent" -v most="$growth" 'BEGIN { exit !(p < most) }' ||
    verdict=FAILED
  [[ $verdict == ok ]] || failures=$((failures + 1))
  printf '%-12s %12d %12d %14d %14d %7s%% %s\n' "$name" "${files[$name]}" \
    "$open" "${memory[$name]}" "$kib" "$percent" "$verdict"
done
for name in "${!tensors[@]}"; do
  bytes=$(metric "$name" gshard_tensor_bytes)
  echo "tensors of $name in use: ${tensors[$name]} bytes before, $bytes after," \
    "$(metric "$name" gshard_tensor_cached_bytes) kept for others"
  [[ $bytes == "${tensors[$name]}" ]] || failures=$((failures + 1))
done
for name in "${!calls[@]}"; do
  open=$(metric "$name" gshard_server_calls)
  echo "calls of $name under way: ${calls[$name]} before, $open after"
  ((open <= calls[$name])) || failures=$((failures + 1))
done
((failures == 0))
