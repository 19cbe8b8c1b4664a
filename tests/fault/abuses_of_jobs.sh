# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by abuse.sh: what those may try who may submit training jobs, and what
# may become of the disk under them.

abuses_of_jobs=(borrowed_name borrowed_rights open_exchange shared_folder
  slow_tokenizer cut_index early_microbatches busy_workers)

# NAME FOLDER STEPS LINES...: prints a job of the text $job_text.
trainers_job() {
  small_job "$@" "progress_every_steps: 1" \
    "data { train_path: \"${job_text:-$PWD/tests/data/names.tsv}\" }"
}
# CALLER NAME FOLDER STEPS LINES...: submits it.
submit() {
  local caller=$1
  shift
  trainers_job "$@" > "$scratch/$1.textproto"
  as "$caller" train "$scratch/$1.textproto"
}

# NAME STATE: whether the job is in it.
job_is() { holds "all[0]['progress']['state'] == 'JOB_STATE_$2'" client jobs "$1"; }
job_is_over() { holds "all[0]['progress']['state'] in ('JOB_STATE_SUCCEEDED',
  'JOB_STATE_FAILED', 'JOB_STATE_CANCELLED')" client jobs "$1"; }
# NAME STEP: whether it has been made.
job_made() { holds "int(all[0]['progress'].get('step', 0)) >= $2" client jobs "$1"; }

# Who may train only gives a job the name of a model that is served.
borrowed_name() {
  expect "a job took the name of a model without the right to it" \
    refused_with permission_denied \
    submit trainer borrowed "$scratch/borrowed" 2 'serve_as: "names"'
}

# Who may translate with some models only, or train in some folder, reaches for
# others; who may train anywhere, for what is outside of --data_roots.
borrowed_rights() {
  local outside=/var/tmp/gshard-abuse-$$ folder
  expect "a caller translated with another's model" \
    refused_with permission_denied \
    as titles translate --model=names --from=de Haus
  cp tests/data/names.tsv "$team/names.tsv"
  ln -sfn "$scratch" "$team/link"
  expect "a job read text outside of its caller's folder" \
    refused_with permission_denied submit team theirs "$team/theirs" 2
  for folder in "$scratch/team-2" "$team/../team-2" "$team/link/team-2"; do
    expect "a job wrote to $folder, outside of its caller's" \
      eval 'job_text=$team/names.tsv refused_with permission_denied \
        submit team theirs "$folder" 2'
  done
  expect "a folder was made for a refused job" test ! -e "$scratch/team-2"
  expect "a job wrote outside of the data roots" \
    refused_with permission_denied submit trainer theirs "$outside" 2
  expect "a folder was made outside of the data roots" test ! -e "$outside"
  expect "who may only train loaded a model" refused_with permission_denied \
    as trainer load theirs "$scratch/checkpoints"
  # What they may do they can.
  job_text=$team/names.tsv submit team own "$team/own" 2 > /dev/null
  await "a job in its caller's folder did not succeed" 60000 job_is own SUCCEEDED
}

# In a system of its own routers are to sum gradients by gloo, which asks nobody
# who connects: on an address that others reach the job fails, unless the router
# was told that the network is its own.
open_exchange() {
  local address name
  address=$(hostname -I | cut -d' ' -f1)
  [[ -n $address ]] || give_up "this machine has no address but loopback"
  mapfile -t ports < <(free_ports 3)
  local coordinator=127.0.0.1:${ports[0]}
  start coordinator-gloo gshard_coordinator --listen="$coordinator" \
    --reduce=gloo
  start worker-gloo gshard_expert_worker --listen="unix:$scratch/worker-gloo" \
    --name=worker-gloo --coordinator="$coordinator"
  start router-gloo gshard_router --listen="127.0.0.1:${ports[1]}" \
    --name=router-gloo --coordinator="$coordinator" --reduce_host="$address"
  client wait --routers=1 --workers=1 > /dev/null
  submit trainer exposed "$scratch/exposed" 2 > /dev/null
  await "a job that listens for anybody did not end" 30000 job_is_over exposed
  expect "a job listened for anybody" job_is exposed FAILED
  expect "a job that was refused does not say --insecure" \
    holds "'--insecure' in str(all[0])" client jobs exposed
  stop router-gloo
  start router-gloo gshard_router --listen="127.0.0.1:${ports[2]}" \
    --name=router-gloo --coordinator="$coordinator" --reduce_host="$address" \
    --insecure
  client wait --routers=1 --workers=1 > /dev/null
  submit trainer trusted "$scratch/trusted" 2 > /dev/null
  await "a job over the cluster's own network did not succeed" 60000 \
    job_is trusted SUCCEEDED
  for name in router-gloo worker-gloo coordinator-gloo; do stop "$name"; done
}

# Jobs with directories that are one: the first one's checkpoint stays whole.
shared_folder() {
  local folder=$scratch/shared way other=0
  mkdir -p "$folder"
  ln -sfn "$folder" "$scratch/link"
  submit trainer first "$folder" 4 'checkpoint every_steps: 2 keep: 1' \
    > /dev/null
  await "the first job did not succeed" 60000 job_is first SUCCEEDED
  for way in "$folder" "$folder/" "$scratch/link" "$scratch/../$(basename \
      "$scratch")/shared"; do
    other=$((other + 1))
    if submit trainer "other-$other" "$way" 8 'checkpoint keep: 1' \
        > /dev/null 2>&1; then
      await "job other-$other did not end" 60000 job_is_over "other-$other"
      expect "job other-$other used a folder that is another's" \
        job_is "other-$other" FAILED
    fi
    expect "job other-$other went on from another's checkpoint" \
      refused_with "of job 'first'" \
      as trainer train --resume "$scratch/other-$other.textproto"
  done
  expect "the first job's checkpoint was lost" \
    "$programs/gshard" checkpoint verify "$folder/step-00000004"
}

# A tokenizer that takes minutes, beside others' jobs, which go on; and the end
# of the coordinator meanwhile.
slow_tokenizer() {
  attack python3 - "$scratch/large.tsv" "$RANDOM" << 'PYTHON'
import random, sys
draw = random.Random(int(sys.argv[2]))
letters = "abcdefghijklmnopqrstuvwxyz"
words = ["".join(draw.choices(letters, k=draw.randint(3, 12)))
         for _ in range(300000)]
with open(sys.argv[1], "w") as file:
    for _ in range(150000):
        line = [" ".join(draw.choices(words, k=12)) for _ in range(2)]
        file.write("de\t" + "\t".join(line) + "\n")
PYTHON
  submit trainer steady "$scratch/steady" 100000 > /dev/null
  await "a job did not run" 60000 job_made steady 1
  client cancel steady > /dev/null
  job_text=$scratch/large.tsv submit trainer slow "$scratch/slow" 10 > /dev/null
  await "no tokenizer was trained" 30000 pgrep -P "${pids[coordinator]}" spm_train
  expect_within "submission waited for a tokenizer" 2000 \
    submit trainer beside "$scratch/beside" 10
  expect_within "jobs waited for a tokenizer" 2000 client jobs
  expect_within "cancellation waited for a tokenizer" 2000 client cancel beside
  expect_within "a tokenizer's job was not cancelled at once" 2000 \
    client cancel slow
  await "the tokenizer of a cancelled job went on" 2000 \
    eval '! pgrep -P "${pids[coordinator]}" spm_train'
  job_text=$scratch/large.tsv submit trainer slower "$scratch/slower" 10 > /dev/null
  await "no tokenizer was trained" 30000 pgrep -P "${pids[coordinator]}" spm_train
  local tokenizer
  tokenizer=$(pgrep -P "${pids[coordinator]}" spm_train || true)
  kill -TERM "${pids[coordinator]}"
  await "the coordinator did not stop while a tokenizer was trained" 5000 \
    eval '! kill -0 "${pids[coordinator]}"'
  await "a tokenizer outlived its coordinator" 1000 \
    eval "! kill -0 $tokenizer"
  kill -KILL "${pids[coordinator]}" 2> /dev/null || true
  start_coordinator
  await "no job was found again" 20000 client jobs
  client cancel slower > /dev/null 2>&1 || true
  await "the job was not cancelled" 10000 job_is_over slower
}

# The index of a job's text is cut under it, as by another host on a shared
# disk: the job fails, and no router does.
cut_index() {
  local router=${pids[router-0]} index
  submit trainer cut "$scratch/cut" 1000000 > /dev/null
  await "a job did not run" 60000 job_made cut 2
  while IFS= read -r -d '' index; do truncate --size=4096 "$index"; done \
    < <(find "$scratch/cut" -name '*.pairs' -print0)
  await "a cut index went unnoticed" 60000 job_is_over cut
  expect "the job of a cut index did not fail" job_is cut FAILED
  expect "a router died of a cut index" kill -0 "$router"
}

# A router stands still in the midst of a step of very many microbatches, so
# that the gradients of all others are early: workers keep few of them.
early_microbatches() {
  local name least most
  local -A idle=()
  mapfile -t ports < <(free_ports 1)
  start router-1 gshard_router --listen="127.0.0.1:${ports[0]}" \
    --name=router-1 --coordinator="$coordinator"
  client wait --routers=2 > /dev/null
  trainers_job ahead "$scratch/ahead" 1000000 |
    sed 's/model_width: 32/model_width: 256/; s/expert_width: 40/expert_width: 1024/
         s/microbatches_per_step: 2/microbatches_per_step: 400/
         s/tokens_per_microbatch: 256/tokens_per_microbatch: 64/' \
    > "$scratch/ahead.textproto"
  as trainer train "$scratch/ahead.textproto" > /dev/null
  await "a job did not run" 60000 job_made ahead 1
  for name in worker-0 worker-1 worker-2; do
    idle[$name]=$(resident "$name")
    forget_peak "$name"
  done
  kill -STOP "${pids[router-1]}"
  pause 15000
  kill -CONT "${pids[router-1]}"
  for name in worker-0 worker-1 worker-2; do
    most=$(resident_peak "$name") least=${idle[$name]}
    ((most <= least + 131072)) ||
      failures+=("$name took $((most - least)) KiB for early microbatches")
  done
  client cancel ahead > /dev/null
  await "the job did not end" 20000 job_is_over ahead
  stop router-1
}

# NAME: prints the CPU time that threads of it which make way for others have
# taken, in clock ticks.
yielding_ticks() {
  sed 's/.*) //' "/proc/${pids[$1]}/task/"*/stat |
    awk '$17 > 0 { ticks += $12 + $13 } END { print ticks + 0 }'
}

# A job whose steps take far more than a translation, on the same workers.
busy_workers() {
  local name
  local -A ticks=()
  {
    trainers_job busy "$scratch/busy" 1000000 |
      sed 's/model_width: 32/model_width: 512/; s/ffn_width: 48/ffn_width: 2048/
           s/expert_width: 40/expert_width: 2048/; s/heads: 2/heads: 8/
           s/head_width: 16/head_width: 64/
           s/tokens_per_microbatch: 256/tokens_per_microbatch: 2048/'
  } > "$scratch/busy.textproto"
  as trainer train "$scratch/busy.textproto" > /dev/null
  await "the busy job did not run" 120000 job_made busy 1
  begin=$(now)  # of the time that counts
  for name in router-0 worker-{0,1,2}; do
    ticks[$name]=$(yielding_ticks "$name")
  done
  sleep "$seconds"
  for name in router-0 worker-{0,1,2}; do
    (($(yielding_ticks "$name") > ticks[$name])) ||
      failures+=("training in $name makes no way for others")
  done
  expect_within "the busy job was not cancelled" 5000 client cancel busy
  await "the busy job did not end" 20000 job_is_over busy
}
