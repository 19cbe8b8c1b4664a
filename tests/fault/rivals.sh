#!/bin/bash
# Two coordinators, each with members of its own, are given one checkpoint
# folder, and are paused, resumed and killed in random orders.
#
#   tests/fault/rivals.sh --seed S
#
#   --seed S         of the orders (1)
#   --orders N       orders, each over a folder of its own (50)
#   --events N       events of an order (6)
#   --programs DIR   folder of the programs (build/dev/bin)
#
# Of an order's two jobs both have the same name, so that either may go on with
# what the other left, or names of their own. An event is one of
#
#   submit   a job is submitted, with --resume, to a coordinator that runs
#   pause    SIGSTOP; resume: SIGCONT
#   kill     SIGKILL, and a new process with the same state
#   seize    while one is paused its lock is taken away, as on a disk that has
#            none, and the job is submitted to the other
#
# What must hold when all jobs of an order are over: one of them has succeeded;
# the folder has the last checkpoint of one of the two, it and all others there
# are sound, and all are of jobs of one name; no checkpoint that a job has ended
# with is gone; and each job that was refused or failed says that the folder, or
# the checkpoints in it, are the other's.
#
# Before that, a coordinator with the state directory of another is refused,
# while that one runs and while it is paused, and changes nothing.
#
# Prints a line for each order. Ends with 0 if all held, 1 if not, 2 without
# result. An order ends within two minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

seed=1 orders=50 events=6 programs=build/dev/bin
take_flags seed orders events programs -- "$@"
readonly lease_ms=1000 steps=40
readonly over='SUCCEEDED|FAILED|CANCELLED'
# What somebody is told who may not have the folder.
readonly reasons='in use by|taken over by job|checkpoints of job'

# shellcheck source=tests/fault/processes.sh
source tests/fault/processes.sh

# SIDE COMMAND FLAGS...: of the client.
client() {
  local side=$1
  shift
  "$programs/gshard" "$@" --coordinator="unix:$scratch/$side.sock"
}

# SIDE: starts its coordinator.
start_coordinator() {
  start "$1" gshard_coordinator --listen="unix:$scratch/$1.sock" \
    --state_directory="$scratch/$1-state" --lease_ms="$lease_ms" \
    --log_level=info
}

# SIDE: starts it with a router and a worker.
start_side() {
  start_coordinator "$1"
  local role
  for role in router expert_worker; do
    start "$1-$role" "gshard_$role" --listen="unix:$scratch/$1-$role.sock" \
      --coordinator="unix:$scratch/$1.sock" --lease_ms="$lease_ms" \
      --name="$role" --log_level=info
  done
}

pause_side() { kill -STOP "${pids[$1]}"; paused[$1]=yes; }
resume_side() { kill -CONT "${pids[$1]}"; paused[$1]=; }

# SIDE: ends its coordinator at once.
kill_side() {
  end KILL "$1"
  paused[$1]=
}

# NAME FOLDER STEPS: the text of a job.
job() {
  small_job "$1" "$2" "$3" "tokens_per_microbatch: 128" \
    "data { train_path: \"$PWD/tests/data/names.tsv\" $tokenizer }" \
    "checkpoint every_steps: 2 keep: 1" \
    "recovery { max_recoveries: 1000 replacement_wait_ms: 200 }"
}

failed() {
  echo "order $order failed: $1"
  sed 's/^/  /' "$scratch/order.log"
  exit 1
}
note() { echo "$*" >> "$scratch/order.log"; }
pick() { echo "${@:1 + RANDOM % $#:1}"; }
other_of() { if [[ $1 == left ]]; then echo right; else echo left; fi; }

# SIDE: submits its job; a refusal needs its reason.
submit() {
  local side=$1 said='' name code limit=$((SECONDS + 30))
  name=$(name_of "$side")
  job "$name" "$folder" "$steps" > "$scratch/$side.textproto"
  # It may have been started again only now.
  while code=0; do
    said=$(client "$side" train "$scratch/$side.textproto" --resume 2>&1) ||
      code=$?
    [[ $said == *"unavailable: "* ]] || break
    ((SECONDS < limit)) || break
    sleep 0.1
  done
  if [[ $code -eq 0 ]]; then
    note "$side takes $name"
    taken[$side]=yes
  elif [[ $said =~ $reasons ]]; then
    note "$side refuses $name: $said"
  elif [[ $said == *"which is not over"* || $said == *"expected more than"* ]]
  then
    note "$side has $name"
  else
    failed "$side refuses $name, and does not say why: $said"
  fi
}

# SIDE: the progress of the job, on one line.
progress() {
  client "$1" jobs "$(name_of "$1")" --json 2> /dev/null | tr -d '\n'
}
name_of() { if [[ $same == yes ]]; then echo "both-$order"; else
  echo "$1-$order"; fi; }

# SIDE: waits for the end of its job, if it has taken one; prints the state.
await_end() {
  local limit=$((SECONDS + 120)) said=
  until said=$(progress "$1") && [[ $said =~ \"JOB_STATE_($over)\" ]]; do
    ((SECONDS < limit)) || failed "$1's job is not over after two minutes: $said"
    sleep 0.1
  done
  local state=${BASH_REMATCH[1]}
  note "$1's job: $said"
  if [[ $state == FAILED && ! $said =~ $reasons ]]; then
    failed "$1's job failed, and does not say why: $said"
  fi
  echo "$state" > "$scratch/$1.end"
}

# One random event.
event() {
  local side kind
  side=$(pick left right)
  kind=$(pick submit submit pause resume kill seize)
  case $kind in
    submit)
      [[ -n ${paused[$side]} ]] || submit "$side" ;;
    pause)
      note "pause $side"
      pause_side "$side" ;;
    resume)
      note "resume $side"
      resume_side "$side" ;;
    kill)
      note "kill $side"
      kill_side "$side"
      # Perhaps the other one comes first.
      if [[ $((RANDOM % 2)) -eq 0 && -z ${paused[$(other_of "$side")]} ]]; then
        submit "$(other_of "$side")"
      fi
      start_coordinator "$side" ;;
    seize)
      if [[ -n ${paused[$side]} && -z ${paused[$(other_of "$side")]} ]]; then
        note "seize from $side"
        rm -f "$folder/owner.lock"
        submit "$(other_of "$side")"
      fi ;;
  esac
  sleep "0.$((RANDOM % 6))"
}

# SIDE WORD: a second coordinator with the side's state is refused.
refuse_second() {
  local code=0 began=$SECONDS
  timeout 60 "$programs/gshard_coordinator" \
    --listen="unix:$scratch/second.sock" \
    --state_directory="$scratch/$1-state" > "$scratch/second.log" 2>&1 ||
    code=$?
  if [[ $code -eq 0 || $code -eq 124 ]] ||
    ! grep -q "does another coordinator use it" "$scratch/second.log"; then
    echo "a second coordinator on the state of one that is $2 ends with $code:"
    tail -n 3 "$scratch/second.log"
    exit 1
  fi
  echo "a second coordinator on the state of one that is $2 is refused" \
       "after $((SECONDS - began)) s"
}

echo "seed $seed, $orders orders of $events events"
RANDOM=$seed
declare -A paused=([left]="" [right]="") taken=()
order=0 same='' tokenizer=''
: > "$scratch/order.log"
start_side left
start_side right
for side in left right; do
  client "$side" wait --routers=1 --workers=1 > /dev/null ||
    give_up "the $side members have not come"
done

# One tokenizer for all that follow.
job first "$scratch/first" 1 > "$scratch/first.textproto"
client left train "$scratch/first.textproto" --follow > /dev/null ||
  give_up "no tokenizer was trained"
tokenizer="source_tokenizer_path: \"$scratch/first/tokenizer/source.model\""

refuse_second left running
pause_side left
refuse_second left paused
resume_side left
# It was paused for longer than its lease.
client left wait --routers=1 --workers=1 > /dev/null ||
  give_up "the left members have not come back"

for ((order = 1; order <= orders; ++order)); do
  began=$SECONDS
  folder=$scratch/folder-$order
  same=$(pick yes no)
  taken=()
  : > "$scratch/order.log"
  rm -f "$scratch"/*.end
  # At the same time, in either order.
  first=$(pick left right)
  submit "$first"
  submit "$(other_of "$first")"
  for ((i = 0; i < events; ++i)); do event; done
  winners=
  for side in left right; do resume_side "$side"; done
  for side in left right; do
    [[ -n ${taken[$side]:-} ]] || continue
    await_end "$side"
    [[ $(< "$scratch/$side.end") != SUCCEEDED ]] || winners+=" $side"
  done
  [[ -n $winners ]] || failed "no job has succeeded"
  verified=$("$programs/gshard" checkpoint verify "$folder" 2>&1) ||
    failed "$verified"
  names=$(for checkpoint in "$folder"/step-????????; do
    "$programs/gshard" checkpoint inspect "$checkpoint" --json |
      grep -o '"job": "name: \\"[^\\]*'
  done | sort -u)
  [[ $(wc -l <<< "$names") -eq 1 ]] || failed "checkpoints of two jobs: $names"
  last=$(printf '%s/step-%08d' "$folder" "$steps")
  [[ -d $last ]] || failed "the last checkpoint, $last, is gone"
  [[ -z $(ls -d "$folder"/*.damaged 2> /dev/null || true) ]] ||
    failed "somebody set aside what another wrote: $(ls "$folder")"
  echo "order $order: ${names##*\"} won by$winners," \
       "$(grep -c 'pause\|kill\|seize' "$scratch/order.log" || true) faults," \
       "$((SECONDS - began)) s"
  rm -rf "$folder"
done
echo "all $orders orders held"
