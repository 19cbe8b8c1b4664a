#!/bin/bash
# Trains one job undisturbed, under faults, and on changing numbers of
# processes, and compares the last checkpoints, tensor by tensor, byte by byte.
#
#   tests/fault/exactness.sh --steps N --faults N --seed S
#
#   --steps N        steps of the job (300)
#   --faults N       faults in the second run (50)
#   --seed S         of the faults' times, kinds and victims (1)
#   --partitions P   require, auto or never (auto)
#   --programs DIR   folder of the programs (build/dev/bin)
#   --device D       of routers and workers: cpu, or cuda:N (cpu)
#
# Two routers, four expert workers and the coordinator run as processes. A fault
# is a SIGKILL, after which the process is started again; a SIGSTOP with a
# SIGCONT some time later; or a partition: a process, a group of them, or a
# router and a worker lose sight of the others for some time. Times are shorter
# or longer than the lease. Each fault is printed. Partitions need root, for
# each process gets a network namespace; `auto` says so and does without.
#
# The third run begins on (1 router, 1 worker), is stopped, goes on with (3, 5),
# which shrink to (2, 2) while it runs.
#
# Ends with "identical" (0), the first difference (1), or why there is no result
# (2): a job failed, or was over before all faults had come.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

steps=300 faults=50 seed=1 partitions=auto programs=build/dev/bin
device=cpu
take_flags steps faults seed partitions programs device -- "$@"
readonly lease_ms=1000

# shellcheck source=tests/fault/processes.sh
source tests/fault/processes.sh
# shellcheck source=tests/fault/network.sh
source tests/fault/network.sh
trap 'cleanup; network_end' EXIT
follower=

if [[ $partitions != never ]]; then
  if network_works; then
    partitions=yes
    network_begin
    network_add client
  elif [[ $partitions == require ]]; then
    echo "NO PARTITIONS: network namespaces need root with CAP_NET_ADMIN"
    exit 2
  else
    echo "NO PARTITIONS, kills and stops only: network namespaces need root" \
         "with CAP_NET_ADMIN"
    partitions=never
  fi
fi

# NAME: where it listens.
address() {
  if [[ $partitions == yes ]]; then
    echo "${network_hosts[$1]}:7000"
  else
    echo "unix:$run/$1.sock"
  fi
}

# NAME COMMAND...: runs it where NAME is, in place of this shell.
exec_at() {
  local name=$1
  shift
  [[ $partitions != yes ]] || exec ip netns exec "$network-$name" "$@"
  exec "$@"
}

# NAME: starts the process in $run, the folder of the run.
start() {
  local name=$1 program=gshard_expert_worker
  if [[ $partitions == yes ]]; then
    network_add coordinator
    network_add "$name"
  fi
  local flags=(--listen="$(address "$name")" --log_level=info
               --lease_ms="$lease_ms")
  # A network of its own.
  [[ $partitions != yes ]] || flags+=(--insecure)
  case $name in
    coordinator)
      program=gshard_coordinator
      flags+=(--state_directory="$run/state") ;;
    router*) program=gshard_router ;;&
    *)
      flags+=(--name="$name" --coordinator="$(address coordinator)"
              --device="$device") ;;
  esac
  exec_at "$name" "$programs/$program" "${flags[@]}" >> "$run/$name.log" 2>&1 &
  pids[$name]=$!
  disown "$!"
}

# COMMAND FLAGS...: of the client, with the coordinator.
client() {
  (exec_at client "$programs/gshard" "$@" \
    --coordinator="$(address coordinator)")
}

# ROUTERS WORKERS: the job that needs so many to begin.
job() {
  small_job exactness "$run/checkpoints" "$steps" \
    "microbatches_per_step: 4" "checkpoint every_steps: 5 keep: 2" \
    "min_routers: $1" "min_workers: $2" "progress_every_steps: 10" \
    "recovery { max_recoveries: 1000 replacement_wait_ms: 200 }"
}

# RUN ROUTERS WORKERS: starts a system and submits the job to it; `follower` is
# who watches.
begin() {
  run=$scratch/$1
  mkdir "$run"
  start coordinator
  local i
  for ((i = 0; i < $2; ++i)); do start "router-$i"; done
  for ((i = 0; i < $3; ++i)); do start "worker-$i"; done
  job "$2" "$3" > "$run/job.textproto"
  client wait --routers="$2" --workers="$3" > /dev/null
  client train "$run/job.textproto" --follow > "$run/follow.log" 2>&1 &
  follower=$!
  began=$(now)
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
  local attempts
  attempts=$(client jobs | awk 'NR == 2 { print $4 }')
  for name in "${!pids[@]}"; do end KILL "$name"; done
  echo "the $1 run took $(since) ms, attempts: $attempts"
}

# Of the client: where the job is, and how many workers hold experts for it.
step() { client jobs --json | grep -o '"step":"[0-9]*' | grep -o '[0-9]*$'; }
holders() {
  client describe --json | tr -d ' \n' | grep -o '"expert_counts":\[[^]]*' |
    tr , '\n' | wc -l
}

# MESSAGE CONDITION...: until the condition holds, two minutes at most.
await() {
  local message=$1 limit=$((SECONDS + 120))
  shift
  until "$@"; do
    if ((SECONDS > limit)) || ! kill -0 "$follower" 2> /dev/null; then
      echo "$message did not come about"
      tail -n 3 "$run/follow.log"
      exit 2
    fi
    sleep 0.1
  done
}
at_step() { local now; now=$(step 2> /dev/null) && [[ $now -ge $1 ]]; }
held_by() { local workers; workers=$(holders 2> /dev/null) && [[ $workers -eq $1 ]]; }

# Milliseconds since the run began.
since() { echo $(($(now) - began)); }
say() { echo "$(since) ms: $*"; }

# A partition that lasts $1 ms.
partition() {
  local length=$1 form=$((RANDOM % 4)) name group=()
  if [[ $form -eq 0 ]]; then
    local router=router-$((RANDOM % 2)) worker=worker-$((RANDOM % 4))
    say "fault $fault: $router and $worker are cut apart for $length ms"
    network_cut_pair "$router" "$worker"
    pause "$length"
    network_heal_pair "$router" "$worker"
    return
  fi
  if [[ $form -eq 1 ]]; then
    for name in "${victims[@]}"; do
      [[ $((RANDOM % 2)) -eq 0 ]] || group+=("$name")
    done
  fi
  [[ ${#group[@]} -gt 0 ]] || group=("${victims[RANDOM % ${#victims[@]}]}")
  say "fault $fault: ${group[*]} cut off for $length ms"
  network_cut "${group[@]}"
  pause "$length"
  network_heal "${group[@]}"
}

echo "seed $seed, $steps steps, $faults faults, lease $lease_ms ms"
begin undisturbed 2 4
finish undisturbed
undisturbed=$run/checkpoints
# So that the job is not over before the last fault, on a machine that has become
# faster meanwhile, either.
gap_ms=$(($(since) / (2 * (faults + 1)) + 50))

# LABEL: compares this run's checkpoint with the undisturbed one's.
compare() {
  local difference
  if ! difference=$("$programs/gshard" checkpoint diff --limit=1 \
      "$undisturbed" "$run/checkpoints" 2>&1); then
    echo "the $1 run differs: $difference"
    exit 1
  fi
}

RANDOM=$seed
begin disturbed 2 4
victims=(coordinator router-0 router-1 worker-0 worker-1 worker-2 worker-3)
kinds=2
[[ $partitions != yes ]] || kinds=3
for ((fault = 1; fault <= faults; ++fault)); do
  pause $((RANDOM % gap_ms))
  victim=${victims[RANDOM % ${#victims[@]}]}
  kind=$((RANDOM % kinds)) length=$((RANDOM % (2 * lease_ms)))
  if ! kill -0 "$follower" 2> /dev/null; then
    echo "the job was over after $((fault - 1)) faults: take more steps"
    exit 2
  fi
  case $kind in
    0)
      say "fault $fault: kill $victim"
      end KILL "$victim"
      start "$victim" ;;
    1)
      say "fault $fault: stop $victim for $length ms"
      kill -STOP "${pids[$victim]}"
      pause $length
      kill -CONT "${pids[$victim]}" ;;
    2) partition $length ;;
  esac
done
finish disturbed
compare disturbed

begin elastic 1 1
await "a third of the steps" at_step $((steps / 3))
say "stop of the coordinator, on (1, 1)"
end TERM coordinator
for i in 1 2; do start "router-$i"; done
for i in 1 2 3 4; do start "worker-$i"; done
start coordinator
await "a placement on 5 workers" held_by 5
say "on (3, 5) at step $(step)"
await "two thirds of the steps" at_step $((steps * 2 / 3))
for name in router-0 worker-0 worker-2 worker-4; do end TERM "$name"; done
await "a placement on 2 workers" held_by 2
say "on (2, 2) at step $(step)"
finish elastic
compare elastic
echo "identical"
