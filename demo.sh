#!/bin/bash
# The whole system at work on this machine: makes parallel text from what apt
# serves, trains a Mixture-of-Experts translator with a coordinator, routers and
# expert workers as separate processes, and translates held-out text.
#
#   ./demo.sh                  from nothing to translations, under 15 minutes
#   ./demo.sh --minutes 7      train for 7 minutes (default 4)
#   ./demo.sh --routers 1      with one router (default 2)
#   ./demo.sh --workers 4      with 4 expert workers (default 2)
#   ./demo.sh --no-install     leave apt alone
#
# Needs Debian 12 and nothing else. Everything it makes is in build/ and demo/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source deploy/packages/stages.sh

minutes=4
routers=2
workers=2
install=yes
while [[ $# -gt 0 ]]; do
  case $1 in
    --minutes) minutes=${2:?--minutes takes a number}; shift 2 ;;
    --routers) routers=${2:?--routers takes a number}; shift 2 ;;
    --workers) workers=${2:?--workers takes a number}; shift 2 ;;
    --no-install) install=no; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' demo.sh; exit 0 ;;
    *) echo "unknown option '$1'; see ./demo.sh --help" >&2; exit 2 ;;
  esac
done

gshard=build/release/bin/gshard
out=demo
# Sockets and logs; every gshard command below looks here for the system.
export GSHARD_DIRECTORY=$PWD/$out/run
# The path of a unix socket is short.
if [[ ${#GSHARD_DIRECTORY} -gt 80 ]]; then
  GSHARD_DIRECTORY=$(mktemp -d)
fi
# Prometheus endpoints: the coordinator, then each router, then each worker.
metrics_port=9464
shown_metrics="expert_(tokens|rows|calls|tokens_dropped)_total\
|expert_load_imbalance_ratio|exchange_bytes_total|balance_loss\
|train_(step|loss|tokens_total|tokens_per_second)[{ ]"

# sacreBLEU goes into a folder of its own. Without it the demo still runs, and
# `gshard evaluate` says that there is no score.
install_sacrebleu() {
  [[ -x $out/venv/bin/sacrebleu ]] ||
    { python3 -m venv "$out/venv" &&
      "$out/venv/bin/pip" install --quiet sacrebleu; } ||
    echo "sacrebleu could not be installed: there will be no score."
}

# One child holds every process of the system as its own, and stops them all.
start_system() {
  mkdir -p "$GSHARD_DIRECTORY"
  "$gshard" up --processes --routers "$routers" --workers "$workers" \
    --metrics_port_base "$metrics_port" > "$GSHARD_DIRECTORY/up.log" 2>&1 &
  system=$!
  trap stop_system EXIT
  if ! "$gshard" wait --routers "$routers" --workers "$workers"; then
    cat "$GSHARD_DIRECTORY/up.log"
    return 1
  fi
  "$gshard" describe
}

stop_system() {
  local status=0
  trap - EXIT
  kill -TERM "$system" 2> /dev/null || true
  wait "$system" || status=$?
  [[ $status -eq 0 ]] || tail -n 20 "$GSHARD_DIRECTORY/up.log"
  return "$status"
}

# What has moved through the experts so far, and how training goes, as each
# process tells it.
show_metrics() {
  local port
  for ((port = metrics_port; port <= metrics_port + routers + workers; ++port))
  do
    echo "--- curl http://localhost:$port/metrics"
    curl --silent --fail "http://127.0.0.1:$port/metrics" |
      grep -E "^gshard_($shown_metrics)" | head -n 12 ||
      echo "(nothing yet)"
  done
}

train() {
  # A job of this name starts from nothing.
  rm -rf "$out/checkpoints" "$out/summary"
  "$gshard" train deploy/config/demo_job.textproto --follow \
    --time_limit "${minutes}m" &
  local job=$! status=0
  # Half way through, look at what an operator would see.
  (sleep "$((minutes * 30))" && show_metrics) &
  local looker=$!
  wait "$job" || status=$?
  [[ $status -eq 0 ]] || kill "$looker" 2> /dev/null
  wait "$looker" || true
  return "$status"
}

evaluate() {
  PATH="$PWD/$out/venv/bin:$PATH" "$gshard" evaluate --model demo \
    --test "$out/data/test.tsv" --limit 500 --beam 4 --out "$out/evaluation" \
    --samples 12 || return
  echo "Held-out titles have siblings in the training text (other packages of" \
       "the same source), which flatters the score."
}

translate() {
  echo "$2 ($1)"
  "$gshard" translate --model demo --beam 4 --from "$1" "$2" | sed 's/^/  /'
}

translate_samples() {
  translate de "Bibliothek zum Lesen von Bildern" &&
    translate fr "bibliothèque de fonctions mathématiques" &&
    translate es "juego de cartas para un jugador" &&
    translate pt_BR "ferramenta para redes sem fio"
}

mkdir -p "$out"
if [[ $install == yes ]]; then
  stage "install packages" deploy/packages/install.sh \
    deploy/packages/build.txt deploy/packages/demo.txt
fi
stage "install sacrebleu" install_sacrebleu
build release gshard gshard_coordinator gshard_router gshard_expert_worker
stage "make parallel text" "$gshard" data debian \
  --languages de,fr,es,pt_BR --out "$out/data"
stage "start 1 coordinator, $routers routers, $workers expert workers" \
  start_system
stage "train for $minutes minutes" train
stage "evaluate 500 held-out titles" evaluate
stage "translate" translate_samples
stage "stop" stop_system
summary
