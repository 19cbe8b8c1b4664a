#!/bin/bash
# Builds the fuzzers with Clang (the preset fuzz) and runs them on the corpora.
#
#   tests/fuzz/run.sh                       all of them, a minute together
#   tests/fuzz/run.sh --seconds 28800       all of them for eight hours
#   tests/fuzz/run.sh --only program        one of them
#   tests/fuzz/run.sh --keep                adds what they found to the corpora
#   tests/fuzz/run.sh --no-install          leaves apt alone
#
# The time is shared evenly; as many run at a time as there are cores. Fails if
# an input ends a fuzzer, runs for over ten seconds or takes over 2 GiB. Such
# inputs stay in build/fuzz/findings; once the bug is mended they belong into
# tests/fuzz/corpus, whose files are also tests of the other presets.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source deploy/packages/stages.sh

seconds=60
only=
install=yes
keep=no
while [[ $# -gt 0 ]]; do
  case $1 in
    --seconds) seconds=${2:?--seconds takes a number}; shift 2 ;;
    --only) only=${2:?--only takes the name of a fuzzer}; shift 2 ;;
    --keep) keep=yes; shift ;;
    --no-install) install=no; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' tests/fuzz/run.sh; exit 0 ;;
    *) echo "unknown option '$1'; see tests/fuzz/run.sh --help" >&2; exit 2 ;;
  esac
done

fuzzers=()
for file in tests/fuzz/*_fuzzer.cc; do
  name=$(basename "$file" _fuzzer.cc)
  [[ -n $only && $name != "$only" ]] || fuzzers+=("$name")
done
if [[ ${#fuzzers[@]} -eq 0 ]]; then
  echo "there is no fuzzer '$only'; see tests/fuzz/*_fuzzer.cc" >&2
  exit 2
fi

if [[ $install == yes ]]; then
  stage "install packages" deploy/packages/install.sh \
    deploy/packages/build.txt deploy/packages/fuzz.txt
fi
build fuzz "${fuzzers[@]/#/fuzz_}"

# fuzz NAME: its time's share of inputs that nobody has tried yet.
findings=$PWD/build/fuzz/findings
fuzz() {
  local name=$1 parallel share status=0
  local work=build/fuzz/corpus/$name log=$findings/$name.log
  parallel=$((jobs < ${#fuzzers[@]} ? jobs : ${#fuzzers[@]}))
  share=$((seconds * parallel / ${#fuzzers[@]}))
  mkdir -p "$work"
  local dictionary=()
  if [[ -f tests/fuzz/$name.dict ]]; then
    dictionary=("-dict=tests/fuzz/$name.dict")
  fi
  # What is new goes to the first folder; the second stays as it is.
  ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 \
  UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 \
    "build/fuzz/tests/fuzz_$name" "$work" "tests/fuzz/corpus/$name" \
    "${dictionary[@]}" -max_total_time=$((share > 0 ? share : 1)) \
    -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$findings/$name-" > "$log" 2>&1 || status=$?
  if [[ $status -ne 0 ]]; then
    tail -n 60 "$log" >&2
    echo "fuzz_$name failed; its input is one of $findings/$name-*" >&2
    return 1
  fi
  echo "$name: $(awk '/number_of_executed_units/ {print $2}' "$log") inputs," \
       "$(find "$work" -type f | wc -l) kept"
}

run_all() {
  local failed=0 running=0 name
  rm -rf "$findings"
  mkdir -p "$findings"
  for name in "${fuzzers[@]}"; do
    if [[ $running -ge $jobs ]]; then
      wait -n || failed=1
      running=$((running - 1))
    fi
    fuzz "$name" &
    running=$((running + 1))
  done
  while [[ $running -gt 0 ]]; do
    wait -n || failed=1
    running=$((running - 1))
  done
  return "$failed"
}
stage "fuzz" run_all

# The fewest inputs that cover what all of them do.
add_to_corpora() {
  local name
  for name in "${fuzzers[@]}"; do
    "build/fuzz/tests/fuzz_$name" -merge=1 -max_len=2048 \
      "tests/fuzz/corpus/$name" "build/fuzz/corpus/$name" || return 1
  done
}
if [[ $keep == yes ]]; then stage "add to the corpora" add_to_corpora; fi
summary
