# Translations that keep coming while a served model's processes change: to be
# sourced by scripts that count what fails meanwhile, after processes.sh.
#
# Uses `programs`, `load`, the program translate_load, `seed`, `lease_ms`,
# `rate`, translations a second, or 0 for 70 % of what is measured, `workers`,
# their names, `worker_flags`, of each by name, and `device`, of all. Sets
# `failures`; `recovery` is what the next line says of it, and `late` makes it a
# failure where degraded answers may not come late.

loader=

declare -A worker_flags=()

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
    *)
      # shellcheck disable=SC2206
      flags+=(--name="$name" --coordinator="$coordinator"
        --device="${device:-cpu}" ${worker_flags[$name]-}) ;;
  esac
  "$programs/$program" --listen="$listen" "${flags[@]}" \
    >> "$scratch/$name.log" 2>&1 &
  pids[$name]=$!
  disown "$!"
}

# REPLICAS: starts all processes, trains a model and serves it.
serve_names() {
  local name
  start coordinator
  for name in router-0 router-1 "${workers[@]}"; do start "$name"; done
  small_job names "$scratch/checkpoints" 30 > "$scratch/job.textproto"
  client wait --routers=2 --workers="${#workers[@]}" > /dev/null
  client train "$scratch/job.textproto" --follow > "$scratch/train.log" 2>&1 ||
    give_up "the job failed"
  client load names "$scratch/checkpoints" --replicas="$1" > /dev/null
  settle "${#workers[@]}"
  [[ $rate == 0 ]] || return 0
  "$load" --routers="$routers" --rate=0 --calls=16 --seconds=2 > /dev/null
  rate=$("$load" --routers="$routers" --rate=0 --calls=16 --seconds=5 |
    awk '{ print $8 * 0.7 }')
}

print_head() {
  printf '%-9s %9s %7s %9s %11s %11s %9s\n' fault requests failed degraded \
    p50 p99 recovery
}

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
