#!/bin/bash
# Attacks a system in every way that somebody without rights, or with some, may
# try, breaks what it stands on, and looks at what honest users see of it.
#
#   tests/fault/abuse.sh --seed S
#
#   --seed S         of users, victims and times (1)
#   --seconds T      of each abuse, and of the quiet time before it (10)
#   --only NAMES     some of the abuses, separated by commas
#   --programs DIR   folder of the programs (build/dev/bin)
#   --tools DIR      folder of the attacks (build/dev/tests)
#   --load PROGRAM   translate_load (build/dev/benchmark/translate_load)
#
# A coordinator and a router on TCP that know their callers by tokens, and three
# expert workers, run as processes and serve a model with two replicas of each
# expert. An honest user translates all the time, at a fifth of what the system
# can do, first quietly, then beside the abuse, and retries nothing. What must
# hold, besides what is printed for each abuse:
#
#   failed    none of its requests
#   p99       at most three times that of all quiet times until then
#   after     members, served models, calls and sentences in work are as before
#
# The router is set up for short answers, as by somebody who serves several
# callers: a batch of 16 rows, not of as many as there are, so that who fills it
# does not make a step of others take many times as long. Each process computes
# on one thread, as in a container with one CPU: on cores that seven processes
# share, a loop on two threads waits for the one that has lost its core.
#
# Attackers and the other systems that are started run at the lowest priority and
# the honest user at a raised one (nice 19 and -5, which needs root), for they
# would have machines of their own. Prints a line for each abuse. Ends with 0 if all held, 1 if not, 2 without result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

seed=1 seconds=10 only="" programs=build/dev/bin tools=build/dev/tests
load=build/dev/benchmark/translate_load
take_flags seed seconds only programs tools load -- "$@"
programs=$(realpath -m "$programs") tools=$(realpath -m "$tools")
load=$(realpath -m "$load")
# shellcheck source=tests/fault/processes.sh
source tests/fault/processes.sh
# shellcheck source=tests/fault/abuses_of_callers.sh
source tests/fault/abuses_of_callers.sh
# shellcheck source=tests/fault/abuses_of_jobs.sh
source tests/fault/abuses_of_jobs.sh
# shellcheck source=tests/fault/abuses_of_processes.sh
source tests/fault/abuses_of_processes.sh
require "$load" "$tools"/{hostile_requests,stalled_uploads,shifted_clock.so} \
  spm_train curl hostname pgrep
RANDOM=$seed

# NAME ROLES: adds a caller, whose token is in the file $scratch/tokens/NAME.
add_caller() {
  local token
  token=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \n')
  (umask 077; printf '%s' "$token" > "$scratch/tokens/$1")
  echo "$1 token $(printf '%s' "$token" | sha256sum | cut -d' ' -f1) $2" \
    >> "$scratch/callers"
}

# CALLER COMMAND FLAGS...: of the client, by somebody.
as() {
  local caller=$1
  shift
  GSHARD_TOKEN_FILE=$scratch/tokens/$caller "$programs/gshard" "$@" \
    --coordinator="$coordinator"
}
client() { as operator "$@"; }
# COMMAND...: of an attacker.
attack() { nice -n 19 "$@"; }

# WHAT CONDITION...: notes what does not hold, once.
failures=()
expect() {
  local what=$1
  shift
  "$@" > "$scratch/expect.out" 2>&1 ||
    failures+=("$what; $(tail -n 1 "$scratch/expect.out" | cut -c -160)")
}
# WHAT MILLISECONDS COMMAND...: the command succeeds, within the time.
expect_within() {
  local what=$1 limit=$2 began pid
  shift 2
  began=$(now)
  "$@" > "$scratch/expect.out" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2> /dev/null && (($(now) - began < limit)); do
    pause 20
  done
  if kill -KILL "$pid" 2> /dev/null; then
    failures+=("$what: took longer than $limit ms")
    wait "$pid" 2> /dev/null || true
  elif ! wait "$pid"; then
    failures+=("$what: $(tail -n 1 "$scratch/expect.out" | cut -c -160)")
  fi
}
# WHAT MILLISECONDS COMMAND...: the command succeeds before the time is over.
await() {
  local what=$1 limit=$(($(now) + $2))
  shift 2
  until "$@" > "$scratch/expect.out" 2>&1; do
    if (($(now) > limit)); then
      failures+=("$what")
      return 0
    fi
    pause 50
  done
}
# NAME: stops a process.
stop() {
  kill -TERM "${pids[$1]}"
  await "$1 did not stop" 20000 eval "! kill -0 ${pids[$1]}"
  unset "pids[$1]"
}
# Whether COMMAND fails with TEXT in what it prints; prints it.
refused_with() {
  local words=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "it was not refused"
    return 1
  fi
  echo "$output"
  [[ $output == *"$words"* ]]
}
# Of the client's JSON, by a Python expression of `all`, a list of objects.
holds() {
  local expression=$1
  shift
  "$@" --json 2> /dev/null | python3 -c '
import json, sys
text, decoder, all, at = sys.stdin.read(), json.JSONDecoder(), [], 0
while text[at:].strip():
    at += len(text[at:]) - len(text[at:].lstrip())
    value, at = decoder.raw_decode(text, at)
    all.append(value)
sys.exit(not eval(f"({sys.argv[1]})"))' "$expression"
}

# FILE: begins an honest user's calls.
begin_user() {
  nice -n -5 "$load" --routers="$routers" --rate="$rate" --seconds=86400 \
    --seed="$RANDOM" --token_file="$scratch/tokens/honest" --deadline-ms=10000 \
    --log="$1" > "$1.load" 2>&1 &
  user=$!
}
end_user() {
  kill -TERM "$user"
  wait "$user" || give_up "the user's calls failed: $(tail -n 1 "$1.load")"
}
# FILE BEGIN END: prints the calls that were under way then.
calls_of() {
  awk -v begin="$2" -v until="$3" '
    NF == 4 && $1 >= begin && $1 - $2 <= until { print $2, $3 }' "$1"
}
# Prints how many calls, failures and p99.
summary_of() {
  sort -n | awk '{ took[NR] = $1; failed += $2 != 0 }
      END { printf "%d %d %.1f\n", NR, failed, took[int(NR * 0.99) + (NR > 0)] }'
}

# What is to be as before: members, models, and nothing in work.
state() {
  local gauge
  client describe --json | python3 -c '
import json, sys
state = json.load(sys.stdin)
print(sorted(m["name"] for m in state.get("members", [])))
for s in state.get("sessions", []):
    if s.get("state") == "READY":
        print(s.get("session"), s.get("experts_below_replicas", 0),
              len(s.get("routers", [])))'
  for gauge in gshard_requests_in_flight gshard_requests_queued \
      gshard_batch_sentences gshard_open_streams; do
    echo "$gauge $(metric router-0 $gauge)"
  done
}
is_as_before() { [[ $(state 2> /dev/null) == "$before" ]]; }

# NAME: the honest user alone, then beside the abuse, a function of that name
# that takes $seconds or longer and ends what it began.
bad=0
run() {
  local name=$1 begin until calls failed p99 quiet_p99 verdict=ok
  failures=()
  begin_user "$scratch/user-$name"
  pause 1000
  begin=$(now)
  sleep "$seconds"
  until=$(now)
  calls_of "$scratch/user-$name" "$begin" "$until" >> "$scratch/quiet"
  read -r calls failed quiet_p99 < <(summary_of < "$scratch/quiet")
  [[ $failed == 0 ]] || give_up "$failed of $calls calls failed in quiet times"
  begin=$(now)
  "$name" || failures+=("it was not tried to its end")
  while (($(now) < begin + 1000 * seconds)); do pause 100; done
  until=$(now)
  end_user "$scratch/user-$name"
  read -r calls failed p99 \
    < <(calls_of "$scratch/user-$name" "$begin" "$until" | summary_of)
  ((failed == 0)) || failures+=("$failed of the user's calls failed: $(
    grep -m 1 '^failed' "$scratch/user-$name.load" | cut -c -160)")
  awk -v a="$p99" -v b="$quiet_p99" 'BEGIN { exit !(a <= 3 * b) }' ||
    failures+=("p99 is more than three times that of quiet times")
  await "the system is not as before" 20000 is_as_before
  ((${#failures[@]} == 0)) || verdict=FAILED
  [[ $verdict == ok ]] || bad=$((bad + 1))
  printf '%-22s %8d %7d %9.1f ms %9.1f ms %s\n' "$name" "$calls" "$failed" \
    "$quiet_p99" "$p99" "$verdict"
  ((${#failures[@]} == 0)) || printf '  %s\n' "${failures[@]}"
}

mkdir "$scratch/tokens"
add_caller member expert
add_caller operator train,admin
add_caller honest translate
add_caller greedy translate
add_caller trainer train
add_caller titles 'translate:titles-*'
team=$scratch/team  # a folder, and who may train in it
mkdir "$team"
add_caller team "train:$team"
export GSHARD_AUTH_FILE=$scratch/callers GSHARD_TOKEN_FILE=$scratch/tokens/member
export TMPDIR=$scratch/temporary
mkdir "$TMPDIR"
mapfile -t ports < <(free_ports 1)
coordinator=127.0.0.1:${ports[0]}
export GSHARD_MAX_BATCH_ROWS=16 GSHARD_MAX_ENCODE_TOKENS=64  # the router's
export GSHARD_DATA_ROOTS=$scratch,$PWD  # the coordinator's
export GSHARD_THREADS=1
replicas=2
# So that a translation takes tens of milliseconds.
model_width=256
model_steps=4
prepare_clock
serve 1 3
before=$(state)
"$load" --routers="$routers" --rate=0 --calls=16 --seconds=2 \
  --token_file="$scratch/tokens/honest" > /dev/null
rate=$("$load" --routers="$routers" --rate=0 --calls=16 --seconds=4 \
  --token_file="$scratch/tokens/honest" | awk '{ print $8 * 0.2 }')
all_abuses=("${abuses_of_callers[@]}" "${abuses_of_jobs[@]}"
            "${abuses_of_processes[@]}")
echo "seed $seed, $rate translations a second by the honest user"
printf '%-22s %8s %7s %12s %12s\n' abuse calls failed quiet_p99 p99
for abuse in "${all_abuses[@]}"; do
  [[ -z $only || ,$only, == *,$abuse,* ]] || continue
  run "$abuse"
done
((bad == 0))
