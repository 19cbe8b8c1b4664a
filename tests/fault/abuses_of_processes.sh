# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by abuse.sh: processes that freeze, clocks that jump, operators who
# press Ctrl-C.

abuses_of_processes=(frozen_worker wrong_clock interrupted_system quick_system
  interrupted_evaluation)

# Before processes start: the coordinator's wall clock is ahead by the seconds
# in a file.
prepare_clock() {
  echo 0 > "$scratch/clock"
  environment[coordinator]="LD_PRELOAD=$tools/shifted_clock.so
    GSHARD_CLOCK_SHIFT_FILE=$scratch/clock"
}

# A worker stands still in the midst of a step and stays so: the job goes on
# without it.
frozen_worker() {
  submit trainer frozen "$scratch/frozen" 1000000 \
    'checkpoint every_steps: 20 keep: 2' 'recovery { replacement_wait_ms: 200 }' \
    > /dev/null
  await "a job did not run" 60000 job_made frozen 25
  kill -STOP "${pids[worker-2]}"
  await "the job did not go on without a worker" 25000 \
    holds "int(all[0]['progress']['attempt']) > 1 and
      all[0]['progress']['state'] == 'JOB_STATE_RUNNING'" client jobs frozen
  local step
  step=$(client jobs frozen --json | grep -o '"step":"[0-9]*' | grep -o '[0-9]*$' |
    tail -n 1)
  await "the job made no step without the worker" 20000 \
    job_made frozen $((step + 5))
  kill -CONT "${pids[worker-2]}"
  client cancel frozen > /dev/null
  await "the job did not end" 20000 job_is_over frozen
}

# The wall clock of the coordinator jumps by half a minute, and back: nobody is
# lost.
wrong_clock() {
  submit trainer clock "$scratch/clock-job" 1000000 > /dev/null
  await "a job did not run" 60000 job_made clock 2
  local shift
  for shift in 30 0 -30 0; do
    echo "$shift" > "$scratch/clock"
    pause 2500
  done
  expect "a jump of the clock cost an attempt" \
    holds "int(all[0]['progress']['attempt']) == 1" client jobs clock
  expect "a jump of the clock expired members" holds \
    "len(all[0]['members']) == 4" client describe
  client cancel clock > /dev/null
  await "the job did not end" 20000 job_is_over clock
}

# DIRECTORY FLAGS...: `gshard up` with processes, its lines with their times in
# DIRECTORY.lines. It is a system of its own, which would have its own machine.
begin_system() {
  local directory=$1
  shift
  (
    unset GSHARD_AUTH_FILE GSHARD_TOKEN_FILE
    # Of what runs in the background a shell lets Ctrl-C be ignored.
    exec nice -n 19 env --default-signal=INT "$programs/gshard" up --processes --routers=2 --workers=2 \
      --directory="$directory" --program_directory="$programs" "$@"
  ) > >(while IFS= read -r line; do echo "$(now) $line"; done \
    > "$directory.lines") 2> "$directory.err" &
  pids[up]=$!
  await "gshard up did not get ready" 30000 grep -q ready: "$directory.lines"
}
# SIGNAL LIMIT: ends it.
end_system() {
  kill "-$1" "${pids[up]}"
  await "gshard up did not stop" "$2" eval '! kill -0 "${pids[up]}"'
  expect "gshard up failed" wait "${pids[up]}"
  unset 'pids[up]'
}
# FOLDER COMMAND...: of the client of such a system.
in_system() {
  local directory=$1
  shift
  (unset GSHARD_TOKEN_FILE; "$programs/gshard" "$@" --directory="$directory")
}

# Ctrl-C of `gshard up` during a job: what it has learnt is kept.
interrupted_system() {
  local directory=$scratch/up
  begin_system "$directory" --state_directory="$scratch/up-state"
  trainers_job kept "$scratch/kept" 1000000 > "$scratch/kept.textproto"
  in_system "$directory" train "$scratch/kept.textproto" > /dev/null
  await "a job did not run" 60000 holds \
    "int(all[0]['progress'].get('step', 0)) >= 10" in_system "$directory" jobs
  end_system INT 20000
  begin_system "$directory" --state_directory="$scratch/up-state"
  await "the job did not go on from a checkpoint" 30000 holds \
    "int(all[0]['progress'].get('checkpoint_step',
      all[0]['progress'].get('checkpointStep', 0))) >= 10 and
      int(all[0]['progress'].get('step', 0)) >= 11" in_system "$directory" jobs
  in_system "$directory" cancel kept > /dev/null
  end_system TERM 20000
}

# A system is ready half a second after its last process has started, and stops
# within half a second.
quick_system() {
  local directory=$scratch/quick began started ready boot
  begin_system "$directory"
  ready=$(awk '/ready:/ { print $1 }' "$directory.lines")
  # When processes started, in hundredths of a second since the machine did.
  boot=$(awk '$1 == "btime" { print $2 }' /proc/stat)
  started=$(for child in $(pgrep -P "${pids[up]}"); do
      sed 's/.*) //' "/proc/$child/stat" | cut -d' ' -f20
    done | sort -n | tail -n 1)
  # btime is rounded; the age of the youngest process is not.
  local uptime
  uptime=$(awk '{ printf "%d", $1 * 1000 }' /proc/uptime)
  started=$(($(now) - uptime + 10 * started))
  began=$(now)
  pause 1000
  expect "ready $((ready - started)) ms after the last process, not 500" \
    test $((ready - started)) -le 500
  began=$(now)
  end_system TERM 10000
  expect "stopped after $(($(now) - began)) ms, not 500" \
    test $(($(now) - began)) -le 550
}

# Ctrl-C of an evaluation while its scores are made: nothing is left in the
# temporary folder.
interrupted_evaluation() {
  local child
  printf '#!/bin/bash\n[[ $* == --version ]] || exec sleep 60\n' > "$scratch/slow_scores"
  chmod +x "$scratch/slow_scores"
  head -n 20 tests/data/names.tsv > "$scratch/evaluated.tsv"
  GSHARD_TOKEN_FILE=$scratch/tokens/honest env --default-signal=INT \
    "$programs/gshard" evaluate \
    --test="$scratch/evaluated.tsv" --model=names \
    --sacrebleu="$scratch/slow_scores" --coordinator="$coordinator" \
    > "$scratch/evaluation" 2>&1 &
  child=$!
  await "an evaluation made no scores" 20000 \
    eval 'ls "$TMPDIR" | grep -q gshard-evaluate'
  kill -INT "$child"
  await "an evaluation did not stop" 5000 eval "! kill -0 $child"
  expect "an evaluation left $(ls "$TMPDIR")" test -z "$(ls "$TMPDIR")"
}
