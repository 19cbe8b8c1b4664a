#!/bin/bash
# Serves a model while its processes are killed, stopped and restarted, under
# translations that keep coming at 70 % of what the system can do.
#
#   tests/fault/serving.sh --seed S
#
#   --seed S         of the faults' victims and times (1)
#   --faults N       kills, and stops, of workers with 2 replicas (10)
#   --programs DIR   folder of the programs (build/dev/bin)
#   --next DIR       folder of another release's programs, which replace the
#                    others one by one in `restart` and stay
#   --load PROGRAM   translate_load (build/dev/benchmark/translate_load)
#   --rate R         translations a second (0: 70 % of what is measured first)
#   --device D       of routers and workers: cpu, or cuda:N (cpu)
#
# Two routers behind one client channel, four expert workers and the coordinator
# run as processes. Nothing is retried by the client. What must hold:
#
#   kill      2 replicas, SIGKILL of a worker: 0 failed, 0 degraded
#   stop      2 replicas, SIGSTOP of a worker for some time, shorter or longer
#             than the lease, and in the end of the coordinator for two leases:
#             0 failed, 0 degraded
#   kill-1    1 replica, SIGKILL: 0 failed; degraded answers say so, and none is
#             3 s after the worker is back
#   restart   2 replicas, SIGTERM and a new process for the coordinator, each
#             router and each worker in turn, then SIGKILL and a new process for
#             the coordinator, at half of the rate, for at times there is one
#             router: 0 failed, 0 degraded
#
# Prints a line for each; "recovery" is the longest time from a worker's return
# to its experts being in use again as before (kill, stop), or to the last
# degraded answer (kill-1). Ends with 0 if all held, 1 if not, 2 without result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

seed=1 faults=10 programs=build/dev/bin next= rate=0
load=build/dev/benchmark/translate_load device=cpu
take_flags seed faults programs next load rate device -- "$@"
readonly lease_ms=2000 recovery_limit_ms=3000

# shellcheck source=tests/fault/processes.sh
source tests/fault/processes.sh
# shellcheck source=tests/fault/steady_load.sh
source tests/fault/steady_load.sh
require "$load"

workers=(worker-0 worker-1 worker-2 worker-3)
serve_names 2
echo "seed $seed, $faults faults of a kind, $rate translations a second"
print_head

begin_load none
pause 5000
end_load none none

begin_load kill
for ((fault = 1; fault <= faults; ++fault)); do
  victim=${workers[RANDOM % 4]}
  pause $((RANDOM % 500))
  end KILL "$victim"
  pause $((RANDOM % 1500))
  back=$(now)
  start "$victim"
  settle 4 "$victim" "$back"
  recovered $((settled - back))
done
recovery="$recovery ms" end_load kill none

recovery=0
begin_load stop
for ((fault = 1; fault <= faults; ++fault)); do
  victim=${workers[RANDOM % 4]}
  pause $((RANDOM % 500))
  kill -STOP "${pids[$victim]}"
  pause $((RANDOM % (2 * lease_ms)))
  kill -CONT "${pids[$victim]}"
  back=$(now)
  settle 4
  recovered $((settled - back))
done
# All members have left when it goes on, and join again.
kill -STOP "${pids[coordinator]}"
pause $((2 * lease_ms))
back=$(now)
kill -CONT "${pids[coordinator]}"
settle 4 worker-0 "$back"
recovered $((settled - back))
recovery="$recovery ms" end_load stop none

recovery=0
signalled=
begin_load restart "$(awk -v rate="$rate" 'BEGIN { print rate / 2 }')"
[[ -z $next ]] || programs=$next
for name in coordinator router-0 router-1 "${workers[@]}" coordinator; do
  signal=TERM
  [[ $name != coordinator || $signalled == '' ]] || signal=KILL
  end "$signal" "$name"
  signalled+=$name
  # Without a coordinator for longer than its members' leases.
  [[ $signal != KILL ]] || pause $((lease_ms + lease_ms / 2))
  back=$(now)
  start "$name"
  member=$name
  [[ $name != coordinator ]] || member=worker-0  # which joins again
  settle 4 "$member" "$back"
  recovered $((settled - back))
  # Until the client has seen that the router serves again.
  [[ $name != router* ]] || pause 1500
done
recovery="$recovery ms" end_load restart none

client load names "$scratch/checkpoints" --version=single --replicas=1 \
  > /dev/null
settle 4
recovery=0
begin_load kill-1
for ((fault = 1; fault <= (faults + 2) / 3; ++fault)); do
  victim=${workers[RANDOM % 4]}
  end KILL "$victim"
  pause $((500 + RANDOM % 1000))
  back=$(now)
  start "$victim"
  settle 4 "$victim" "$back"
  pause $recovery_limit_ms
  last=$(awk -v back="$back" '$4 == 1 && $1 > back { last = $1 }
    END { print last ? last - back : 0 }' "$scratch/calls-kill-1")
  recovered "$last"
  ((last <= recovery_limit_ms)) || late=1
done
recovery="$recovery ms" end_load kill-1 late

((failures == 0))
