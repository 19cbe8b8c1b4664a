#!/bin/bash
# Runs deploy/slurm on a Slurm cluster of four nodes, which this machine plays.
#
#   tests/deploy/slurm.sh [--quick] [--programs DIR]
#
#   --quick          one short job, undisturbed
#   --programs DIR   folder of the programs (build/dev/bin, build/release/bin)
#
# Trains a job undisturbed, and once more while a worker is killed, and the
# allocation is parked by a signal and later requeued without warning; the last
# checkpoints have to be the same, tensor by tensor. Then one that is cancelled, and
# a sweep of three jobs.
# Slurm and its nodes are in namespaces of their own: nothing of them is left, and
# nothing else is touched. What the script makes of CPUs, GPUs, certificates, faults
# and exit codes is tried first, with fakes of Slurm's commands.
#
# Ends with 0 if all held, 1 if not, 77 if tools are missing.
# packages: slurm-wlm munge iproute2 util-linux openssl
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh
source tests/deploy/tools.sh
# shellcheck source=tests/testing/small_job.sh
source tests/testing/small_job.sh

quick='' programs=''
take_flags quick! programs -- "$@"

# What train.sbatch does, with fakes of the commands that it calls: the tasks of
# srun end with the script that started them, and what is asked for is in the log.
# As Slurm does, runs it again after each requeue, up to $starts times (1).
with_fakes() {
  local fakes start=0
  fakes=$(mktemp -d)
  cat > "$fakes/srun" << 'TEXT'
#!/bin/bash
for flag in --exact --mem=0 --export=ALL --kill-on-bad-exit=1; do
  [[ " $* " == *" $flag "* ]] || echo "no $flag" >> "$FAKES/log"
done
[[ $* != *--overlap* ]] || echo "shares CPUs" >> "$FAKES/log"
[[ $* != *--insecure* ]] || echo insecure >> "$FAKES/log"
echo "srun with ${SRUN_CPUS_PER_TASK-no} CPUs, $GSHARD_THREADS threads" >> "$FAKES/log"
[[ " $* " =~ \ --gres=([^ ]*)\ .*\ (gshard_[a-z_]+)\ (.*--device=([^ ]*))? ]]
gpus="${BASH_REMATCH[2]} with ${BASH_REMATCH[1]} on ${BASH_REMATCH[4]-}"
none='^gshard_(coordinator with none on |.* with none on cpu)$'
[[ $gpus =~ $none ]] ||
  echo "$gpus" >> "$FAKES/log"
case $* in
  *gshard_coordinator*)
    echo "$$" > "$FAKES/coordinator"
    [[ $* =~ --listen=0.0.0.0:0\ --address_file=([^ ]*) ]]
    [[ ! -e ${BASH_REMATCH[1]} ]] || echo "an old address" >> "$FAKES/log"
    [[ -z ${COORDINATOR_ENDS-} ]] || exit "$COORDINATOR_ENDS"
    echo host:4321 > "${BASH_REMATCH[1]}" ;;
  *gshard_router*)
    [[ $* == *--coordinator=n0:4321\ * ]] || echo "elsewhere" >> "$FAKES/log"
    [[ -z ${SRUN_ENDS-} ]] || exit "$SRUN_ENDS"
    if [[ -n ${SRUN_LOST-} ]]; then
      until grep -q train "$FAKES/log"; do sleep 0.05; done
      exit "$SRUN_LOST"
    fi
    if [[ -n ${ROUTER_ENDS-} ]]; then
      while [[ $1 == --* ]]; do shift; done
      exec "$@"
    fi ;;
esac
exec tail --pid="$(< "$FAKES/script")" --sleep-interval=0.1 -f /dev/null
TEXT
  # $ROUTER_TIMES times.
  cat > "$fakes/gshard_router" << 'TEXT'
#!/bin/bash
echo >> "$FAKES/routers"
[[ $(wc -l < "$FAKES/routers") -gt $ROUTER_TIMES ]] || exit "$ROUTER_ENDS"
exec tail --pid="$(< "$FAKES/script")" --sleep-interval=0.1 -f /dev/null
TEXT
  cat > "$fakes/scontrol" << 'TEXT'
#!/bin/bash
case $1/$2 in
  show/hostnames)
    echo n0
    [[ ${PARK-} != at_once ]] || kill -TERM "$(< "$FAKES/script")" ;;
  show/job) printf '   %s\n' "JobState=${JOB_STATE-RUNNING} Reason=None" \
              "Command=$PWD/deploy/slurm/train.sbatch job state" ;;
  *) echo "$*" >> "$FAKES/log" ;;
esac
TEXT
  cat > "$fakes/squeue" << 'TEXT'
#!/bin/bash
[[ ${PARK-} != train ]] || printf '7.%s\n' "1 gshard_router" "0 gshard_coordinator"
TEXT
  cat > "$fakes/scancel" << 'TEXT'
#!/bin/bash
echo "scancel $*" >> "$FAKES/log"
[[ $* != *7.0 || -n ${HANGS-} ]] || kill "$(< "$FAKES/coordinator")"
TEXT
  cat > "$fakes/gshard" << 'TEXT'
#!/bin/bash
until [[ $(grep -c srun "$FAKES/log") -eq 3 ]]; do sleep 0.05; done
last() { exec tail --pid="$(< "$FAKES/script")" --sleep-interval=0.1 -f /dev/null; }
if [[ ${PARK-} == "$1" && ${PARK_AT-0} -eq $SLURM_RESTART_COUNT ]]; then
  kill -TERM "$(< "$FAKES/script")"
  last
fi
if [[ -n ${ROUTER_ENDS-} ]]; then
  until [[ $(wc -l < "$FAKES/routers") -gt $ROUTER_TIMES ]]; do
    kill -0 "$(< "$FAKES/script")" || exit
    sleep 0.05
  done
fi
if [[ $1 == wait ]]; then
  [[ -z ${SRUN_ENDS-} ]] || last
  exit "${WAIT_ENDS-0}"
fi
echo "train with $GSHARD_TLS_CERTIFICATE" >> "$FAKES/log"
[[ -z ${FULL-} ]] || ln -s /nowhere/faults "$FAKES/state/faults"
[[ -z ${STEPS-} ]] || echo "step $((STEPS))/1000  loss"
[[ -z ${SRUN_LOST-} ]] || last
exit "${TRAIN_ENDS-0}"
TEXT
  # Not a second at a time.
  printf '#!/bin/bash\nexec /bin/sleep 0.05\n' > "$fakes/sleep"
  chmod +x "$fakes"/*
  # As Slurm does, which runs a copy.
  cp deploy/slurm/train.sbatch "$fakes/slurm_script"
  touch "$fakes/routers"
  while
    : > "$fakes/log"
    FAKES=$fakes PATH=$fakes:$PATH SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 \
      SLURM_JOB_NODELIST=n0 SLURM_RESTART_COUNT=$start timeout --kill-after=5 60 \
      "$@" bash -c 'echo "$$" > "$FAKES/script"; exec "$0" "$@"' \
      "$fakes/slurm_script" job "$fakes/state" > "$fakes/out" 2>&1 ||
      echo "ended with $?" >> "$fakes/log"
    grep -o "is its disk full" "$fakes/out" >> "$fakes/log" || true
    sed "s#$fakes#.#" "$fakes/log" >> "$fakes/logs"
    ((++start < ${starts-1})) && grep -q requeue "$fakes/log"
  do :; done
  if grep -q 'train with ./state/tls/job.pem' "$fakes/logs"; then
    [[ $(stat -c %a "$fakes/state/tls") == 700 &&
       $(stat -c %a "$fakes/state/tls/job.key") == 600 ]] &&
      openssl verify -CAfile "$fakes/state/tls/ca.pem" "$fakes/state/tls/job.pem" \
        > "$fakes/out" 2>&1 || echo "bad certificates" >> "$fakes/logs"
  fi
  [[ -z ${starts-} ]] || echo "$start starts" >> "$fakes/logs"
  [[ ! -s $fakes/routers ]] ||
    echo "$(wc -l < "$fakes/routers") routers" >> "$fakes/logs"
  sort -u "$fakes/logs" | paste -sd';'
  rm -rf "$fakes"
}
need openssl
if [[ -z ${GSHARD_CHECK_INSIDE-} ]]; then
  one="srun with 1 CPUs, 1 threads" train="train with ./state/tls/job.pem"
  expect "srun with 16 CPUs, 16 threads;$train" \
    "$(with_fakes env SLURM_CPUS_PER_TASK=16)" "a job with --cpus-per-task=16"
  expect "srun with 16 CPUs, 8 threads;$train" \
    "$(with_fakes env SLURM_CPUS_PER_TASK=16 GSHARD_THREADS=8)" "a job with 8 threads"
  expect "$one;$train" "$(with_fakes)" "a job"
  expect "$one;train with mine.pem" \
    "$(with_fakes env GSHARD_TLS_CERTIFICATE=mine.pem)" "a job with a certificate"
  expect "ended with 70;$one;$train" "$(with_fakes env TRAIN_ENDS=70)" \
    "a job that cannot succeed"
  expect "ended with 75;requeue 7;$one;$train" \
    "$(with_fakes env TRAIN_ENDS=75)" "a job that may yet succeed"
  expect "ended with 75;requeue 7_3;$one;$train" \
    "$(with_fakes env TRAIN_ENDS=75 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=3)" \
    "the last task of an array that may yet succeed"
  expect "ended with 75;$one;$train" \
    "$(with_fakes env TRAIN_ENDS=75 JOB_STATE=COMPLETING)" "a job that is cancelled"
  expect "ended with 75;requeue 7;$one" \
    "$(with_fakes env WAIT_ENDS=75)" "a job whose members are late"
  for code in 1 2 70; do
    expect "ended with $code;$one" \
      "$(with_fakes env WAIT_ENDS=$code)" "a job whose wait ends with $code"
  done
  expect "ended with 2;$one" "$(with_fakes env SRUN_ENDS=2)" \
    "a job whose routers have wrong flags"
  expect "ended with 75;requeue 7;$one" \
    "$(with_fakes env SRUN_ENDS=75)" "a job of which a process starts only later"
  expect "ended with 75;requeue 7;$one" \
    "$(with_fakes env COORDINATOR_ENDS=75)" "a job whose state is locked yet"
  expect "ended with 1;$one" \
    "$(with_fakes env COORDINATOR_ENDS=1)" "a job whose coordinator does not start"
  expect "ended with 1;$one" "$(with_fakes env SRUN_ENDS=0)" \
    "a job whose routers end"
  expect "ended with 75;requeue 7;$one;$train" "$(with_fakes env SRUN_LOST=1)" \
    "a job whose routers end while it trains"

  expect "11 routers;$one;$train" "$(with_fakes env ROUTER_ENDS=137 ROUTER_TIMES=10)" \
    "a job of which a router is lost ten times"
  expect "12 routers;ended with 137;$one" \
    "$(with_fakes env ROUTER_ENDS=137 ROUTER_TIMES=99)" \
    "a job of which a router is always lost"
  for code in 0 2; do
    expect "1 routers;ended with $((code == 0 ? 1 : 2));$one" \
      "$(with_fakes env ROUTER_ENDS=$code ROUTER_TIMES=99)" \
      "a job of which a router ends with $code"
  done

  parked="ended with 75;requeue 7"
  expect "$parked;scancel --signal=TERM 7.0;$one" "$(with_fakes env PARK=train)" \
    "a job that is parked"
  expect "$parked;scancel --signal=TERM 7.0;$one" \
    "$(with_fakes env PARK=train HANGS=yes)" \
    "a job that is parked while its coordinator hangs"
  expect "$parked;$one" "$(with_fakes env PARK=wait)" \
    "a job that is parked before its coordinator's step begins"
  expect "$parked" "$(with_fakes env PARK=at_once)" \
    "a job that is parked before any step begins"

  mine=(env GSHARD_TLS_CERTIFICATE=mine.pem TRAIN_ENDS=75)
  often="ended with 75;requeue 7;$one;train with mine.pem"
  expect "10 starts;$often" "$(starts=12 with_fakes "${mine[@]}")" \
    "a job with the same fault again and again"
  expect "10 starts;$often" "$(starts=12 with_fakes "${mine[@]}" STEPS=5)" \
    "a job that never comes further than its fifth step"
  expect "1 starts;ended with 75;is its disk full;$one;train with mine.pem" \
    "$(starts=12 with_fakes "${mine[@]}" FULL=yes)" \
    "a job whose faults cannot be counted"
  expect "12 starts;$often" \
    "$(starts=12 with_fakes "${mine[@]}" STEPS=SLURM_RESTART_COUNT+1)" \
    "a job that comes further each time"
  expect "16 starts;${often/$one/scancel --signal=TERM 7.0;$one}" \
    "$(starts=20 with_fakes "${mine[@]}" PARK=train PARK_AT=5)" \
    "a job that is parked after five faults"

  gpu="gshard_expert_worker with gpu:1 on cuda:0"
  expect "$gpu;$one;$train" \
    "$(with_fakes env GSHARD_EXPERT_WORKER_GRES=gpu:1 GSHARD_DEVICE=cuda:0)" \
    "a job with GPUs for workers"
  expect "$gpu;gshard_router with gpu:2 on cuda:0;$one;$train" \
    "$(with_fakes env GSHARD_EXPERT_WORKER_GRES=gpu:1 GSHARD_ROUTER_GRES=gpu:2 \
      GSHARD_DEVICE=cuda:0)" \
    "a job with GPUs for both"
fi
need root slurmctld slurmd sbatch munged mungekey ip unshare namespaces
programs=$(find_programs "$programs") || exit 77
if [[ -z ${GSHARD_CHECK_INSIDE-} ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  run_inside ${quick:+--quick} --programs "$programs"
fi
scratch=$GSHARD_CHECK_INSIDE
export PATH=$programs:$PATH SLURM_CONF=$scratch/slurm.conf
# Several members on this machine: one thread each.
export GSHARD_THREADS=1 OMP_NUM_THREADS=1

start_slurm() {
  local folder node
  hostname check
  ip link set lo up
  # Slurm serves no loopback addresses.
  ip link add name nodes type bridge
  ip address add 10.77.0.1/24 dev nodes
  ip link set nodes up
  printf '%s\n' "127.0.0.1 localhost" "10.77.0.1 check n0 n1 n2 n3" \
    > "$scratch/hosts"
  mount --bind "$scratch/hosts" /etc/hosts
  for folder in munge state spool log; do mkdir -p "$scratch/$folder"; done
  mungekey --create --keyfile="$scratch/munge/key"
  munged --force --key-file="$scratch/munge/key" \
    --socket="$scratch/munge/socket" --pid-file="$scratch/munge/pid" \
    --log-file="$scratch/log/munged" --seed-file="$scratch/munge/seed"
  cat > "$SLURM_CONF" << TEXT
ClusterName=check
SlurmctldHost=check(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge/socket
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool/%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=100000
KillWait=5
GresTypes=gpu
NodeName=n[0-3] NodeHostname=check NodeAddr=10.77.0.1 Port=[17101-17104] CPUs=6 RealMemory=2000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
TEXT
  # Slurm wants to see two devices.
  printf 'Name=gpu File=%s\n' /dev/null /dev/zero > "$scratch/gres.conf"
  slurmctld -L "$scratch/log/slurmctld"
  for node in n0 n1 n2 n3; do slurmd -N "$node" -L "$scratch/log/$node"; done
  if ! (await 60 "a cluster of four nodes" four_idle); then
    grep -h error "$scratch"/log/slurm* | tail -n 20 >&2
    exit 1
  fi
}
four_idle() { [[ $(sinfo --noheader --states=idle --format=%D) -eq 4 ]]; }

# NAME SEED: the job that writes into $scratch/NAME.
job() {
  small_job "$1" "$scratch/$1" "$steps" "seed: $2" \
    "microbatches_per_step: 4" "min_routers: 2" "min_workers: 2" \
    "progress_every_steps: 5" "checkpoint every_steps: 20 keep: 20" \
    > "$scratch/$1.textproto"
}

# NAME [FLAGS...]: submits that job; its number.
submit() {
  local name=$1
  shift
  sbatch --parsable --nodes=2 --chdir="$scratch" --output="$scratch/$name.out" \
    "$@" "$PWD/deploy/slurm/train.sbatch" "$scratch/$name.textproto" \
    "$scratch/$name-state"
}

field() { scontrol show job "$1" | grep -oE "\b$2=[^ ]+" | head -n 1 | cut -d = -f 2; }
is() { [[ $(field "$1" "$2") == "$3" ]]; }
over() { [[ ! $(field "$1" JobState) =~ ^(PENDING|CONFIGURING|RUNNING|COMPLETING|REQUEUED)$ ]]; }

# ID NAME: waits until it is over, which has to be with success.
finish() {
  await 300 "the end of job $2" over "$1"
  is "$1" JobState COMPLETED && return
  tail -n 30 "$scratch/$2.out" >&2
  fail "job $2 ended as $(field "$1" JobState), $(field "$1" ExitCode)"
}

checkpoints() { find "$scratch/$1" -maxdepth 1 -name 'step-*' | wc -l; }
has_checkpoints() { [[ $(checkpoints "$1") -ge $2 ]]; }
restarts() { is "$1" Restarts "$2" && is "$1" JobState "$3"; }

# ID N: after its Nth requeue, Slurm would hold it back for two minutes. In the same
# second nodes would take it for the one before.
go_on() {
  await 60 "requeue $2 of job $1" restarts "$1" "$2" PENDING
  sleep 2
  scontrol update JobId="$1" StartTime=now
  await 60 "restart $2 of job $1" restarts "$1" "$2" RUNNING
}

start_slurm
steps=$([[ -n $quick ]] && echo 10 || echo 200)
job plain 1
# A step that took more than its GPUs would have the others wait.
plain=$(GSHARD_EXPERT_WORKER_GRES=gpu:1 submit plain --gres=gpu:2)
finish "$plain" plain
echo "a job of $steps steps on 2 nodes: done"
[[ -z $quick ]] || exit 0

job disturbed 1
disturbed=$(submit disturbed)
await 120 "two checkpoints" has_checkpoints disturbed 2
workers() { pgrep -f '^gshard_expert_worker' | sort | paste -sd' '; }
at_first=$(workers)
kill -KILL "${at_first%% *}"
other_workers() { [[ $(workers) != "$at_first" && $(workers) == *\ * ]]; }
await 60 "another worker in place of a lost one" other_workers
await 120 "a checkpoint more" has_checkpoints disturbed \
  $(($(checkpoints disturbed) + 1))
scancel --batch --signal=TERM "$disturbed"
go_on "$disturbed" 1
grep -q '"message":"draining","role":"coordinator"' "$scratch/disturbed.out" ||
  fail "the coordinator of a parked job was killed"
before=$(checkpoints disturbed)
await 120 "more checkpoints" has_checkpoints disturbed $((before + 2))
scontrol requeue "$disturbed"
go_on "$disturbed" 2
finish "$disturbed" disturbed
gshard checkpoint diff "$scratch/plain" "$scratch/disturbed" ||
  fail "parked and requeued, the job has another result"
echo "the same job, with a lost worker, parked and requeued: identical"

job cancelled 1
cancelled=$(submit cancelled)
await 120 "a checkpoint" has_checkpoints cancelled 1
scancel "$cancelled"
await 60 "the end of the job" over "$cancelled"
restarts "$cancelled" 0 CANCELLED || fail "a job that was cancelled comes back"
echo "a job that is cancelled: stays so"

steps=20
for i in 0 1 2; do job "sweep-$i" "$i"; done
sbatch --wait --array=0-2%2 --nodes=2 --chdir="$scratch" \
  --output="$scratch/sweep-%a.out" "$PWD/deploy/slurm/sweep.sbatch" \
  "$scratch/sweep" "$scratch"/sweep-{0,1,2}.textproto > "$scratch/sweep.id" ||
  { tail -n 20 "$scratch"/sweep-*.out >&2; fail "the sweep"; }
for i in 0 1 2; do
  gshard checkpoint verify "$scratch/sweep-$i" > /dev/null ||
    fail "job $i of the sweep has left no checkpoint"
done
! gshard checkpoint diff "$scratch"/sweep-{0,1} > /dev/null ||
  fail "jobs of different seeds have the same result"
echo "a sweep of 3 jobs: done"
