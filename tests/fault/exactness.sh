#!/bin/bash
# Trains one job twice, undisturbed and under faults, and compares the last
# checkpoints, tensor by tensor, byte by byte.
#
#   tests/fault/exactness.sh --steps N --faults N --seed S
#
#   --steps N        steps of the job (300)
#   --faults N       faults in the second run (50)
#   --seed S         of the faults' times, kinds and victims (1)
#   --programs DIR   folder of the programs (build/dev/bin)
#
# Two routers, four expert workers and the coordinator run as processes. A fault
# is a SIGKILL, after which the process is started again, or a SIGSTOP with a
# SIGCONT some time later, shorter or longer than the lease. Each is printed.
# Ends with "identical" (0), the first difference (1), or why there is no result
# (2): the job failed, or was over before all faults had come.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

steps=300 faults=50 seed=1 programs=build/dev/bin
while [[ $# -gt 0 ]]; do
  case $1 in
    --steps) steps=${2:?--steps takes a number}; shift 2 ;;
    --faults) faults=${2:?--faults takes a number}; shift 2 ;;
    --seed) seed=${2:?--seed takes a number}; shift 2 ;;
    --programs) programs=${2:?--programs takes a folder}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "unknown option '$1'; see $0 --help" >&2; exit 2 ;;
  esac
done
readonly lease_ms=1000

scratch=$(mktemp -d)
declare -A pids=()
follower=

cleanup() {
  local pid
  for pid in "${pids[@]}" $follower; do
    kill -KILL "$pid" 2> /dev/null || true
  done
  wait 2> /dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT

# NAME: starts the process in $run, the folder of the run.
start() {
  local name=$1 program=gshard_expert_worker
  local flags=(--listen="unix:$run/$name.sock" --log_level=info)
  case $name in
    coordinator)
      program=gshard_coordinator
      flags+=(--state_directory="$run/state" --lease_ms=$lease_ms) ;;
    router*) program=gshard_router ;;&
    *) flags+=(--name="$name" --coordinator="unix:$run/coordinator.sock") ;;
  esac
  "$programs/$program" "${flags[@]}" >> "$run/$name.log" 2>&1 &
  pids[$name]=$!
  disown "$!"
}

# Ends a process and returns when it is gone.
end() {
  kill -KILL "${pids[$1]}"
  while kill -0 "${pids[$1]}" 2> /dev/null; do sleep 0.01; done
}

job() {
  cat << TEXT
name: "exactness"
model {
  encoder_layers: 2 decoder_layers: 2 model_width: 32 ffn_width: 48
  expert_width: 40 heads: 2 head_width: 16 experts: 8 max_positions: 64
  source_vocabulary_size: 300 target_vocabulary_size: 300
  shared_vocabulary: true
}
data { train_path: "$PWD/tests/data/names.tsv" }
steps: $steps
microbatches_per_step: 4
tokens_per_microbatch: 256
max_length: 48
adam {}
schedule { multiplier: 0.02 warmup_steps: 20 linear_warmup: true }
checkpoint { directory: "$run/checkpoints" every_steps: 5 keep: 2 }
min_routers: 2
min_workers: 4
progress_every_steps: 10
recovery { max_recoveries: 1000 replacement_wait_ms: 200 }
TEXT
}

members=(router-0 router-1 worker-0 worker-1 worker-2 worker-3)

# NAME: starts a system and submits the job to it; `follower` is who watches.
begin() {
  run=$scratch/$1
  mkdir "$run"
  start coordinator
  local name
  for name in "${members[@]}"; do start "$name"; done
  job > "$run/job.textproto"
  "$programs/gshard" wait --routers=2 --workers=4 \
    --coordinator="unix:$run/coordinator.sock" > /dev/null
  "$programs/gshard" train "$run/job.textproto" --follow \
    --coordinator="unix:$run/coordinator.sock" > "$run/follow.log" 2>&1 &
  follower=$!
}

finish() {
  local code=0 name
  wait "$follower" || code=$?
  follower=
  if [[ $code -ne 0 ]]; then
    echo "the job of the $1 run ended with exit code $code:"
    tail -n 3 "$run/follow.log"
    tail -n 3 "$run/coordinator.log"
    exit 2
  fi
  "$programs/gshard" jobs --coordinator="unix:$run/coordinator.sock" |
    awk 'NR == 2 { print "attempts: " $4 }'
  for name in "${!pids[@]}"; do end "$name"; done
  pids=()
}

# Milliseconds since the faults began.
since() { echo $(($(date +%s%3N) - began)); }
pause() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }

echo "seed $seed, $steps steps, $faults faults"
begin undisturbed
began=$(date +%s%3N)
finish undisturbed
undisturbed_ms=$(since)
echo "the undisturbed run took $undisturbed_ms ms"
undisturbed=$run/checkpoints
# So that the job is not over before the last fault.
gap_ms=$((undisturbed_ms / (faults + 1) + 50))

RANDOM=$seed
begin disturbed
began=$(date +%s%3N)
victims=(coordinator "${members[@]}")
for ((fault = 1; fault <= faults; ++fault)); do
  pause $((RANDOM % gap_ms))
  victim=${victims[RANDOM % ${#victims[@]}]}
  kind=$((RANDOM % 2)) length=$((RANDOM % (2 * lease_ms)))
  if ! kill -0 "$follower" 2> /dev/null; then
    echo "the job was over after $((fault - 1)) faults: take more steps"
    exit 2
  fi
  if [[ $kind -eq 0 ]]; then
    echo "$(since) ms: fault $fault: kill $victim"
    end "$victim"
    start "$victim"
  else
    echo "$(since) ms: fault $fault: stop $victim for $length ms"
    kill -STOP "${pids[$victim]}"
    pause $length
    kill -CONT "${pids[$victim]}"
  fi
done
finish disturbed
echo "the disturbed run took $(since) ms"

if ! difference=$("$programs/gshard" checkpoint diff --limit=1 \
    "$undisturbed" "$run/checkpoints" 2>&1); then
  echo "$difference"
  exit 1
fi
echo "identical"
