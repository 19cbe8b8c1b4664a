# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by abuse.sh: what callers may try, with a token that lets them
# translate or without any.

abuses_of_callers=(stalled_uploads hostile_terms one_expert endless_output
  log_lines)

# Messages of 60 MiB without an end: health checks by nobody in particular, and
# translations. The server's memory stays within 64 MiB of what it was, and
# comes back there.
stalled_uploads() {
  local name address kib
  local -A idle=()
  for name in coordinator router-0; do
    idle[$name]=$(resident "$name")
    forget_peak "$name"
  done
  for address in "$coordinator" "$routers"; do
    attack "$tools/stalled_uploads" --address="$address" --connections=1 \
      --streams=200 --seconds=$((seconds / 3)) --again
    attack "$tools/stalled_uploads" --address="$address" --connections=20 \
      --streams=10 --seconds=$((seconds / 3)) --again
  done > "$scratch/uploads" 2>&1
  attack "$tools/stalled_uploads" --address="$routers" \
    --token="$(cat "$scratch/tokens/greedy")" --connections=20 --streams=10 \
    --method=/gshard.v1.TranslationService/Translate \
    --seconds=$((seconds / 3)) --again >> "$scratch/uploads" 2>&1
  pause 2000
  for name in coordinator router-0; do
    kib=$(resident_peak "$name")
    ((kib <= idle[$name] + 65536)) ||
      failures+=("$name took $((kib - idle[$name])) KiB for messages unread")
    kib=$(resident "$name")
    ((kib <= idle[$name] + 65536)) ||
      failures+=("$name kept $((kib - idle[$name])) KiB of them")
  done
}

# KIND FLAGS...: another caller's requests, eight at a time, which cost as much
# as they can. Members and probes see nothing of it.
send_hostile() {
  local kind=$1 hostile until
  shift
  attack "$tools/hostile_requests" --router="$routers" --kind="$kind" \
    --calls=8 --seconds="$seconds" --deadline_ms=2000 \
    --token_file="$scratch/tokens/greedy" "$@" > "$scratch/hostile-$kind" 2>&1 &
  hostile=$!
  until=$(($(now) + 1000 * seconds))
  while (($(now) < until)); do
    expect_within "the router's health did not answer" 1000 \
      "$programs/gshard_router" --listen="$routers" --probe=live \
      --coordinator="$coordinator"
    pause 1000
  done
  wait "$hostile" || failures+=("$(tail -n 1 "$scratch/hostile-$kind")")
}
hostile_terms() { send_hostile terms; }
one_expert() { send_hostile one_expert; }
endless_output() { send_hostile endless; }

# Every line that the router has logged is an object without repeated keys.
log_lines() {
  expect "a log line has a key twice, or is none" python3 - \
    "$scratch/router-0.log" << 'PYTHON'
import json, sys
def once(pairs):
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        sys.exit(f"keys: {keys}")
    return dict(pairs)
for line in open(sys.argv[1]):
    json.loads(line, object_pairs_hook=once)
PYTHON
}
