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
#
# Two routers behind one client channel, four expert workers and the coordinator
# run as processes. Nothing is retried by the client. What must hold:
#
#   kill      2 replicas, SIGKILL of a worker: 0 failed, 0 degraded
#   stop      2 replicas, SIGSTOP of a worker for some time, shorter or longer
#             than the lease: 0 failed, 0 degraded
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

seed=1 faults=10 programs=build/dev/bin next= rate=0
load=build/dev/benchmark/translate_load
while [[ $# -gt 0 ]]; do
  case $1 in
    --seed) seed=${2:?--seed takes a number}; shift 2 ;;
    --faults) faults=${2:?--faults takes a number}; shift 2 ;;
    --programs) programs=${2:?--programs takes a folder}; shift 2 ;;
    --next) next=${2:?--next takes a folder}; shift 2 ;;
    --load) load=${2:?--load takes a program}; shift 2 ;;
    --rate) rate=${2:?--rate takes a number}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "unknown option '$1'; see $0 --help" >&2; exit 2 ;;
  esac
done
readonly lease_ms=2000 recovery_limit_ms=3000

# shellcheck source=tests/fault/processes.sh
source tests/fault/processes.sh
loader=

cleanup() {
  local pid
  for pid in "${pids[@]}" $loader; do
    kill -KILL "$pid" 2> /dev/null || true
    kill -CONT "$pid" 2> /dev/null || true
  done
  wait 2> /dev/null || true
  rm -rf "$scratch"
}

RANDOM=$((seed + $$))
mapfile -t ports < <(free_ports 2)
RANDOM=$seed
readonly routers="127.0.0.1:${ports[0]},127.0.0.1:${ports[1]}"

# NAME: starts the process.
start() {
  local name=$1 program=gshard_expert_worker listen=unix:$scratch/$1.sock
  local flags=(--log_level=info)
  case $name in
    coordinator)
      program=gshard_coordinator
      flags+=(--state_directory="$scratch/state" --lease_ms="$lease_ms") ;;
    router*)
      program=gshard_router listen=127.0.0.1:${ports[${name#router-}]}
      flags+=(--drain_delay=1s) ;;&
    *) flags+=(--name="$name" --coordinator="$coordinator") ;;
  esac
  "$programs/$program" --listen="$listen" "${flags[@]}" \
    >> "$scratch/$name.log" 2>&1 &
  pids[$name]=$!
  disown "$!"
}

# SIGNAL NAME: ends a process and returns when it is gone.
end() {
  kill "-$1" "${pids[$2]}"
  while kill -0 "${pids[$2]}" 2> /dev/null; do sleep 0.01; done
}

now() { date +%s%3N; }
pause() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }

# WORKERS [NAME SINCE]: returns when experts have all their replicas, on so many
# workers, both routers serve them, and process NAME has joined since SINCE, all
# of that for some time. Notes when that began.
settled=
settle() {
  local begin state calm=0
  begin=$(now)
  while ((calm < 3)); do
    state=$(client describe --json 2> /dev/null | python3 -c '
import json, sys, time
state = json.load(sys.stdin)
name, most = sys.argv[1], time.time() * 1000 - int(sys.argv[2])
joined = not name or any(
    m["name"] == name and int(m.get("joined_ms", 0)) <= most
    for m in state.get("members", []))
for s in state.get("sessions", []):
    names = {w["name"] for w in s.get("placement", {}).get("workers", [])}
    print(s.get("state"), s.get("experts_below_replicas", 0), len(names),
          len(s.get("routers", [])), joined)
' "${2-}" "${3-0}" 2> /dev/null || true)
    calm=$((calm + 1))
    ((calm > 1)) || settled=$(now)
    [[ $state == "READY 0 $1 2 True" ]] || calm=0
    (($(now) - begin < 60000)) || give_up "the model did not settle: $state"
    pause 50
  done
}

# NAME [RATE]: loads the routers from now on.
begin_load() {
  "$load" --routers="$routers" --rate="${2-$rate}" --seconds=86400 --seed="$seed" \
    --log="$scratch/calls-$1" > "$scratch/load-$1" 2>&1 &
  loader=$!
  pause 2000
  began=$(now)
}

# NAME DEGRADED: ends the load, after the calls under way, and prints the line.
# What must hold: none has failed, and none is degraded, or with DEGRADED set to
# `late`, none was later than it may be.
failures=0
late=0
end_load() {
  local until line
  until=$(now)
  kill -TERM "$loader"
  wait "$loader" || give_up "the load failed"
  loader=
  : > "$scratch/sorted"
  line=$(awk -v begin="$began" -v until="$until" '
    NF == 4 && $1 >= begin && $1 - $2 <= until {
      ++n; failed += $3 != 0; degraded += $3 == 0 && $4 == 1; print $2 >> sorted
    }
    END { print n + 0, failed + 0, degraded + 0 }
  ' sorted="$scratch/sorted" "$scratch/calls-$1")
  sort -n "$scratch/sorted" -o "$scratch/sorted"
  # shellcheck disable=SC2086
  set -- "$1" "$2" $line
  local p50 p99
  p50=$(awk -v n="$3" 'NR == int(n * 0.5) + 1' "$scratch/sorted")
  p99=$(awk -v n="$3" 'NR == int(n * 0.99) + 1' "$scratch/sorted")
  local verdict=ok
  (($3 > 0 && $4 == 0)) || verdict=FAILED
  if [[ $2 == none ]]; then
    (($5 == 0)) || verdict=FAILED
  elif [[ $2 == late ]]; then
    ((late == 0)) || verdict=FAILED
  fi
  [[ $verdict == ok ]] || failures=$((failures + 1))
  printf '%-9s %9d %7d %9d %8.0f ms %8.0f ms %9s %s\n' "$1" "$3" "$4" "$5" \
    "${p50:-0}" "${p99:-0}" "${recovery:--}" "$verdict"
  if [[ $verdict != ok ]]; then
    head -n 20 "$scratch/load-$1" >&2
    local kept
    kept=$(mktemp -d)
    cp "$scratch"/*.log "$kept"
    echo "logs of the processes: $kept" >&2
  fi
}

# MS: notes the longest recovery.
recovered() { [[ ${recovery:-0} -ge $1 ]] || recovery=$1; }

job() {
  cat << TEXT
name: "names"
model {
  encoder_layers: 2 decoder_layers: 2 model_width: 32 ffn_width: 48
  expert_width: 40 heads: 2 head_width: 16 experts: 8 max_positions: 64
  source_vocabulary_size: 300 target_vocabulary_size: 300
  shared_vocabulary: true
}
data { train_path: "$PWD/tests/data/names.tsv" }
steps: 30
microbatches_per_step: 2
tokens_per_microbatch: 256
max_length: 48
adam {}
schedule { multiplier: 0.02 warmup_steps: 20 linear_warmup: true }
checkpoint { directory: "$scratch/checkpoints" }
TEXT
}

workers=(worker-0 worker-1 worker-2 worker-3)
start coordinator
for name in router-0 router-1 "${workers[@]}"; do start "$name"; done
job > "$scratch/job.textproto"
client wait --routers=2 --workers=4 > /dev/null
client train "$scratch/job.textproto" --follow > "$scratch/train.log" 2>&1 ||
  give_up "the job failed"
client load names "$scratch/checkpoints" --replicas=2 > /dev/null
settle 4

if [[ $rate == 0 ]]; then
  "$load" --routers="$routers" --rate=0 --calls=16 --seconds=2 > /dev/null
  rate=$("$load" --routers="$routers" --rate=0 --calls=16 --seconds=5 |
    awk '{ print $8 * 0.7 }')
fi
echo "seed $seed, $faults faults of a kind, $rate translations a second"
printf '%-9s %9s %7s %9s %11s %11s %9s\n' fault requests failed degraded p50 \
  p99 recovery

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
