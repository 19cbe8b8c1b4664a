#!/bin/bash
# Trains a job from and to an object store, through a store that resets
# connections, loses answers and asks to slow down, with its coordinator killed
# on the way, and compares the last checkpoint with that of the same job on
# folders, tensor by tensor.
#
#   tests/deploy/storage.sh            the whole, five minutes; the store is
#                                      moto, from PyPI
#   tests/deploy/storage.sh --quick    the tests of storage against a store in
#                                      their own process, seconds
#
#   --programs DIR   folder of the programs (build/dev/bin, build/release/bin)
#   --steps N        steps of the job (60)
#   --seed N         which requests meet which fault (0)
#
# packages: python3 python3-venv
#
# Ends with 0 if all held, 77 if it lacks tools or programs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh
# shellcheck source=tests/testing/small_job.sh
source tests/testing/small_job.sh
source tests/deploy/tools.sh

programs='' steps=60 seed=0 quick=
take_flags quick! programs steps seed -- "$@"

need python3
programs=$(find_programs "$programs") || exit 77
if [[ -n $quick ]]; then
  need "$programs"/../tests/{storage_test,checkpoint_test}
  "$programs/../tests/storage_test" --gtest_brief=1 2> /dev/null
  "$programs/../tests/checkpoint_test" --gtest_brief=1 \
    --gtest_filter='ObjectCheckpointTest.*' 2> /dev/null
  exit 0
fi

install_python 'moto[server]==5.*'

scratch=$(mktemp -d)
pids=()
system=
cleanup() {
  local pid status=$?
  [[ $status -ne 1 ]] || tail -n 5 "$scratch"/*.log \
    "$scratch"/*/logs/coordinator*.log >&2 || true
  [[ -z $system ]] || kill -KILL "$system" 2> /dev/null || true
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait 2> /dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 2' INT TERM

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}
store_port=$(free_port) proxy_port=$(free_port)
export AWS_ACCESS_KEY_ID=testing AWS_SECRET_ACCESS_KEY=testing
export AWS_REGION=us-east-1
# What the checks themselves ask goes by the proxy, too.
export AWS_ENDPOINT_URL=http://127.0.0.1:$proxy_port

"$venv/bin/moto_server" -H 127.0.0.1 -p "$store_port" \
  > "$scratch/store.log" 2>&1 &
pids+=($!)
python3 tests/deploy/storage_proxy.py "$proxy_port" "$store_port" \
  "$scratch/faults" "$seed" 2> "$scratch/proxy.log" &
pids+=($!)

# PYTHON: runs it with `s3`, past the proxy.
in_store() {
  "$venv/bin/python" -c "import boto3, sys
s3 = boto3.client('s3', endpoint_url='http://127.0.0.1:$store_port')
$1"
}
for ((i = 0; i < 100; ++i)); do
  in_store "s3.create_bucket(Bucket='gshard')" 2> /dev/null && break
  sleep 0.2
done
head -n 3000 tests/data/names.tsv > "$scratch/train.tsv"
in_store "s3.upload_file('$scratch/train.tsv', 'gshard', 'text/train.tsv')"

# CHECKPOINTS TEXT: the job.
job() {
  small_job storage "$1" "$steps" "data { train_path: \"$2\" }" \
    "checkpoint every_steps: 5 keep: 2" \
    "recovery { max_recoveries: 1000 replacement_wait_ms: 200 }"
}

# NAME: starts the system in a folder of that name; `system` is its process.
start() {
  "$programs/gshard" up --processes --routers 1 --workers 2 \
    --directory "$scratch/$1" --state_directory "$scratch/$1/state" \
    >> "$scratch/$1.log" 2>&1 &
  system=$!
  client wait > /dev/null || fail "the system did not start"
}
client() { "$programs/gshard" "$@" --directory "$scratch/$run"; }
stop() {
  kill -TERM "$system"
  wait "$system" || true
  system=
}
step() {
  { client jobs --json || true; } 2> /dev/null |
    sed -n 's/.*"step":"\{0,1\}\([0-9]*\).*/\1/p' | head -n 1
}

run=folders
start "$run"
job "$scratch/folders/checkpoints" "$scratch/train.tsv" > "$scratch/a.textproto"
client train "$scratch/a.textproto" --follow > "$scratch/a.log" 2>&1 ||
  fail "the job on folders failed"
stop

run=objects
start "$run"
job s3://gshard/run s3://gshard/text/train.tsv > "$scratch/b.textproto"
# It follows the job past the coordinator's end, to its own; its time bounds
# also what is awaited here.
timeout 480 "$programs/gshard" train "$scratch/b.textproto" --follow \
  --directory "$scratch/$run" > "$scratch/b.log" 2>&1 &
following=$!
pids+=("$following")
while at=$(step) && [[ ${at:-0} -lt 12 ]]; do
  kill -0 "$following" 2> /dev/null || fail "the job on objects has ended"
  sleep 0.1
done
[[ $at -lt $steps ]] ||
  fail "the coordinator was to be killed between steps 12 and $steps, not $at"
pkill -KILL -P "$system" -x gshard_coordina || fail "no coordinator to kill"
! wait "$system" || fail "a system without a coordinator has not failed"
echo "coordinator killed at step $at"
start "$run"
wait "$following" || fail "the job failed after the coordinator was killed"
stop

last=step-$(printf %08d "$steps")
"$programs/gshard" checkpoint verify "s3://gshard/run/$last" ||
  fail "the last checkpoint is not sound"
"$programs/gshard" checkpoint diff "$scratch/folders/checkpoints/$last" \
  "s3://gshard/run/$last" || fail "the checkpoints differ"
"$programs/gshard" checkpoint inspect s3://gshard/run
for fault in slow lost reset cut; do
  grep -q "^$fault " "$scratch/faults" || fail "no request was $fault"
done
kept=$(in_store "print(*sorted({o['Key'].split('/')[1] for o in
  s3.list_objects_v2(Bucket='gshard', Prefix='run/step-')['Contents']}))")
[[ $kept == "step-$(printf %08d $((steps - 5))) $last" ]] ||
  fail "expected the last two checkpoints, got $kept"
echo "identical, through $(grep -vc '^passed' "$scratch/faults") faults in" \
     "$(wc -l < "$scratch/faults") requests"
