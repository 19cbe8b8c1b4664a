# A coordinator, routers and expert workers as processes of this machine, with
# a small model trained and served: to be sourced by scripts that load it.
#
# Uses `programs`, the folder of the programs, which have to be there,
# `coordinator`, its address, `model_width`, `model_steps`, how long it is
# trained, `replicas` of its experts, and `environment`, variables of processes
# by name. Sets `scratch`, a folder that is removed in the end, `pids`, which are
# killed then, and `metrics` (addresses) by name, and `routers`.

# shellcheck source=tests/testing/small_job.sh
source tests/testing/small_job.sh

# WHAT...: ends without a result unless all are there: files, or commands.
require() {
  local what missing=()
  for what in "$@"; do
    [[ -e $what ]] || command -v "$what" > /dev/null || missing+=("$what")
  done
  [[ ${#missing[@]} -eq 0 ]] ||
    { echo "no result: missing ${missing[*]}" >&2; exit 2; }
}
require "${programs:?}"/gshard{,_coordinator,_router,_expert_worker} python3

scratch=$(mktemp -d)
declare -A pids=()
coordinator=unix:$scratch/coordinator.sock
declare -A metrics=() environment=()
routers=
model_width=32
model_steps=30
replicas=1

cleanup() {
  local pid
  for pid in "${pids[@]}" $(jobs -p); do
    kill -KILL "$pid" 2> /dev/null || true
  done
  wait 2> /dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 2' INT TERM

client() { "$programs/gshard" "$@" --coordinator="$coordinator"; }

give_up() {
  echo "no result: $1" >&2
  tail -n 2 "$scratch"/*.log >&2
  exit 2
}

now() { date +%s%3N; }
# MILLISECONDS
pause() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }

# SIGNAL NAME: ends a process and returns when it is gone.
end() {
  kill "-$1" "${pids[$2]}"
  while kill -0 "${pids[$2]}" 2> /dev/null; do sleep 0.01; done
  unset "pids[$2]"
}

# Prints so many ports that nobody listens at.
free_ports() {
  local port found=0
  for ((port = 20000 + RANDOM % 20000; found < $1; ++port)); do
    if ! (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then
      echo "$port"
      found=$((found + 1))
    fi
  done
}

# NAME PROGRAM FLAGS: starts a process.
start() {
  local name=$1 program=$2
  shift 2
  # shellcheck disable=SC2086
  env ${environment[$name]-} "$programs/$program" "$@" \
    >> "$scratch/$name.log" 2>&1 &
  pids[$name]=$!
  disown "$!"
}

# Prints the job that the model is trained by.
names_job() {
  small_job names "$scratch/checkpoints" "$model_steps" \
    "model { model_width: $model_width ffn_width: $((4 * model_width)) heads: 2
      expert_width: $((4 * model_width)) head_width: $((model_width / 2))
      $small_model }"
}

start_coordinator() {
  start coordinator gshard_coordinator --listen="$coordinator" \
    --state_directory="$scratch/state"
}

# ROUTERS WORKERS: starts that many, trains and serves a model. Each router has
# a port for calls and one for its metrics.
serve() {
  local i ports
  start_coordinator
  mapfile -t ports < <(free_ports $((2 * $1 + $2)))
  for ((i = 0; i < $1; ++i)); do
    metrics[router-$i]=127.0.0.1:${ports[$1 + i]}
    start "router-$i" gshard_router --listen="127.0.0.1:${ports[i]}" \
      --name="router-$i" --coordinator="$coordinator" \
      --metrics_address="${metrics[router-$i]}"
    routers+=${routers:+,}127.0.0.1:${ports[i]}
  done
  for ((i = 0; i < $2; ++i)); do
    metrics[worker-$i]=127.0.0.1:${ports[2 * $1 + i]}
    start "worker-$i" gshard_expert_worker --listen="unix:$scratch/worker-$i" \
      --name="worker-$i" --coordinator="$coordinator" \
      --metrics_address="${metrics[worker-$i]}"
  done
  names_job > "$scratch/job.textproto"
  client wait --routers="$1" --workers="$2" > /dev/null
  client train "$scratch/job.textproto" --follow > "$scratch/train.log" 2>&1 ||
    give_up "the job failed"
  client load names "$scratch/checkpoints" --replicas="$replicas" > /dev/null ||
    give_up "the model was not loaded"
}

# NAME: prints the process's resident memory in KiB.
resident() {
  awk '$1 == "VmRSS:" { print $2 }' "/proc/${pids[$1]}/status"
}

# NAME: prints the most that it was, in KiB, since forget_peak.
resident_peak() {
  awk '$1 == "VmHWM:" { print $2 }' "/proc/${pids[$1]}/status"
}
forget_peak() { echo 5 > "/proc/${pids[$1]}/clear_refs"; }

# NAME: prints how many files and sockets the process has open.
open_files() { find "/proc/${pids[$1]}/fd" -mindepth 1 | wc -l; }

# PROCESS NAME: prints a metric, summed over its labels.
metric() {
  curl -sf "http://${metrics[$1]}/metrics" |
    awk -v name="$2" '{ split($1, part, "{") }
      part[1] == name { sum += $NF }
      END { print sum + 0 }'
}
