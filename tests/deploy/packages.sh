#!/bin/bash
# Makes the Debian packages and tries them on a Debian that has nothing else.
#
#   tests/deploy/packages.sh [--quick] [--build DIR] [--cache DIR]
#
#   --quick       in seconds: what is installed, units, manual and completion of
#                 the programs as they were built; no packages, no other root
#   --build DIR   a build folder with the four programs (build/release or
#                 build/dev)
#   --cache DIR   keeps a bare Debian and what apt fetched for it, for the next
#                 time (~/.cache/gshard)
#
# Ends with 0 if all is well, 1 if not, 77 if tools are missing. All of it needs
# root, and apt's archive.
# packages: bash-completion cmake debootstrap dpkg-dev help2man iproute2 lintian systemd
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

quick='' build='' cache=${XDG_CACHE_HOME:-$HOME/.cache}/gshard
take_flags quick! build cache -- "$@"
for folder in build/release build/dev; do
  [[ -n $build || ! -x $folder/bin/gshard_router ]] || build=$folder
done
tools=(cmake help2man systemd-analyze)
[[ -n $quick ]] || tools+=(debootstrap dpkg-shlibdeps ip lintian)
missing=()
for tool in "${tools[@]}"; do
  PATH=$PATH:/usr/sbin command -v "$tool" > /dev/null || missing+=("$tool")
done
completion=/usr/share/bash-completion/bash_completion
[[ -n $quick || $(id -u) -eq 0 ]] || missing+=(root)
[[ -r $completion ]] || missing+=(bash-completion)
[[ -x $build/bin/gshard ]] || missing+=("programs in ${build:-build/release}/bin")
if [[ ${#missing[@]} -gt 0 ]]; then
  echo "missing: ${missing[*]}"
  exit 77
fi

programs=(gshard gshard_coordinator gshard_router gshard_expert_worker)
roles=(coordinator router expert-worker)
packages=(gshard-common gshard "${roles[@]/#/gshard-}")
units=(gshard-coordinator.service gshard-router.service
  gshard-expert-worker@7002.service)
scratch=$(mktemp -d)
staged=$scratch/staged
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# Flags that a command knows, "--beam" each on a line.
flags_of() { "$@" --help | sed -nE 's/^  (--[a-z_]+).*/\1/p'; }

# The commands of gshard, "data debian" each on a line.
commands() {
  "$build/bin/gshard" --help |
    sed -nE '/^Commands:/,/^$/s/^  ([a-z]+( [a-z]+)?) .*/\1/p'
}

# Every program and command as words, a line each.
everything_with_help() {
  local command
  printf '%s\n' "${programs[@]:1}"
  commands | while read -r command; do echo "gshard $command"; done
}

stage_install() {
  local package
  for package in "${packages[@]}"; do
    DESTDIR=$staged cmake --install "$build" --prefix /usr \
      --component "$package" > "$scratch/install.log" ||
      { cat "$scratch/install.log" >&2; exit 1; }
  done
}

# Each package's files are where a Debian has such files, and a plain install
# leaves /etc and units out.
check_files() {
  local file
  for file in usr/bin/gshard usr/bin/gshard_{coordinator,router,expert_worker} \
    usr/lib/gshard/gshard_sentencepiece.so \
    usr/share/doc/gshard-common/{copyright,THIRD_PARTY.md,changelog.gz} \
    usr/share/doc/gshard-common/{ARCHITECTURE.md,examples/python/translate.py} \
    usr/share/gshard/proto/gshard/v1/translation.proto \
    usr/share/doc/gshard-router/operations.md \
    usr/share/man/man1/gshard-data-debian.1.gz \
    usr/share/man/man8/gshard_router.8.gz \
    usr/share/bash-completion/completions/{gshard,gshard_router} \
    usr/lib/systemd/system/gshard-{coordinator.service,expert-worker@.service} \
    usr/lib/systemd/system/gshard-.service.d/hardening.conf \
    etc/gshard/{coordinator,router,expert-worker}.env; do
    [[ -e $staged/$file ]] || fail "there is no /$file"
  done
  DESTDIR=$scratch/plain cmake --install "$build" --prefix /opt/gshard \
    > "$scratch/install.log"
  file=$(cd "$scratch/plain" && find . -not -type d | grep -v '^./opt/gshard/' ||
    true)
  [[ -z $file ]] || fail "a plain install writes $file"
  file=$(find "$scratch/plain" -name '*.service' -o -name '*.env')
  [[ -z $file ]] || fail "a plain install has $file"
}

# Units say what systemd understands, and give away little.
check_units() {
  local unit target said
  for target in sysinit basic shutdown network-online multi-user; do
    printf '[Unit]\nDescription=of this test\n' \
      > "$staged/usr/lib/systemd/system/$target.target"
  done
  for unit in "${units[@]}"; do
    # It warns, but succeeds, over much that it ignores.
    said=$(systemd-analyze verify --man=no --root="$staged" "$unit" 2>&1) || true
    [[ -z $said ]] || fail "$unit: $said"
    said=$(systemd-analyze security --offline=true --threshold=20 \
      --root="$staged" "$unit" 2>&1) ||
      fail "$unit: exposure above 2.0: $(tail -n 1 <<< "$said")"
    tail -n 1 <<< "$said"
  done
  rm "$staged"/usr/lib/systemd/system/*.target
}

# A variable of an environment file, commented out or not, is a flag.
check_environment_files() {
  local role flags variable
  for role in "${roles[@]}"; do
    flags=$(flags_of "$build/bin/gshard_${role//-/_}")
    while read -r variable; do
      variable=${variable#GSHARD_}
      grep -qxF -- "--${variable,,}" <<< "$flags" ||
        fail "$role.env sets GSHARD_$variable, and there is no such flag"
    done < <(sed -nE 's/^#?(GSHARD_[A-Z_]+)=.*/\1/p' "deploy/debian/$role.env")
  done
}

# No unit is killed while it drains, for which the coordinator has as long as
# elsewhere: a job's checkpoint.
check_stop() {
  local role unit delay drain limit
  for role in "${roles[@]}"; do
    unit=$(echo deploy/systemd/gshard-"$role"*.service)
    delay=$(sed -nE 's/^GSHARD_DRAIN_DELAY=([0-9]+)s$/\1/p' "deploy/debian/$role.env")
    drain=$(sed -n 's/^GSHARD_DRAIN_SECONDS=//p' "deploy/debian/$role.env")
    limit=$(sed -n 's/^TimeoutStopSec=//p' "$unit")
    [[ $role != coordinator || $drain == 90 ]] ||
      fail "$role.env: ${drain:-30} s for a checkpoint, elsewhere 90"
    ((limit > delay + ${drain:-30})) || fail "$unit: killed after $limit s"
  done
}

# Every flag is in the manual.
check_manual() {
  local words page flag text
  while read -ra words; do
    page=${words[*]}
    page=${page// /-}
    text=$(zcat "$staged/usr/share/man"/man?/"$page".?.gz | sed -E 's/\\f.|\\//g') ||
      { fail "there is no manual of $page"; continue; }
    for flag in $(flags_of "$build/bin/${words[0]}" "${words[@]:1}"); do
      grep -qE -- "$flag($|[^a-z_])" <<< "$text" || fail "man $page lacks $flag"
    done
  done < <(everything_with_help)
}

# complete_words WORD...: what bash offers for the last word, a line each. Runs in a
# shell as a user has it, with the completion that was installed.
complete_words() {
  PATH=$staged/usr/bin:$PATH bash --norc -c '
    source "$1"
    source "$2/usr/share/bash-completion/completions/gshard"
    shift 2
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
    COMP_LINE=${COMP_LINE// = /=} COMP_POINT=${#COMP_LINE}  # "=" ends a word
    compopt() { :; }  # there is no completion under way
    COMPREPLY=()
    _gshard "$1" "${@: -1}" "${@: -2:1}"
    printf "%s\n" "${COMPREPLY[@]}"' bash "$completion" "$staged" "$@"
}

# expect_completion WANTED WORD...: the lines are WANTED, on one line.
expect_completion() {
  local wanted=$1 got
  shift
  got=$(complete_words "$@" | sort | xargs)
  [[ $got == "$wanted" ]] || fail "completion of '$*': expected '$wanted', got '$got'"
}

check_completion() {
  local words offered flag first
  while read -ra words; do
    offered=$(complete_words "${words[@]}" --)
    for flag in $(flags_of "$build/bin/${words[0]}" "${words[@]:1}"); do
      grep -qE -- "^$flag=?$" <<< "$offered" ||
        fail "completion of '${words[*]} --' lacks $flag"
    done
  done < <(everything_with_help)
  offered=$(complete_words gshard "")
  for first in $(commands | cut -d ' ' -f 1 | sort -u); do
    grep -qx "$first" <<< "$offered" || fail "completion of 'gshard ' lacks $first"
  done
  expect_completion "--help diff export inspect verify" gshard checkpoint ""
  expect_completion "coordinator gloo nccl" gshard up --reduce = ""
  expect_completion "joined" gshard_router --probe jo
  mkdir -p "$scratch/here/folder"
  touch "$scratch/here/file.txt"
  (cd "$scratch/here" &&
    expect_completion "file.txt folder" gshard translate --file "" &&
    expect_completion "folder" gshard up --state_directory "" &&
    expect_completion "file.txt" gshard train "fi" &&
    expect_completion "" gshard translate --beam "" &&
    exit "$failures") || failures=$?
}

cleanup() {
  [[ -z ${root:-} ]] || leave_root
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 2' INT TERM

stage_install
check_files
check_units
check_environment_files
check_stop
check_manual
check_completion
if [[ -z $quick ]]; then
  # shellcheck source=tests/deploy/bare_root.sh
  source tests/deploy/bare_root.sh
  check_packages
fi
[[ $failures -eq 0 ]] || { echo "$failures checks failed"; exit 1; }
echo "packages: all is well"
