# shellcheck shell=bash
# Sourced by test.sh and demo.sh: a sane environment, timed stages, the build.

# A container or chroot may come with no home, no locale and no terminal.
export LC_ALL=C.UTF-8
[[ -n ${HOME:-} ]] || HOME=~  # of the user database
if [[ ! -w $HOME ]]; then
  HOME=$PWD/.cache
  mkdir -p "$HOME"
fi
export HOME
# Outlives the build folder, so that a second clean build takes seconds.
export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccache}

# Compilers at a time: one a core, as long as each has 1 GiB.
default_jobs() {
  local cores gigabytes
  cores=$(nproc)
  gigabytes=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' \
              /proc/meminfo 2> /dev/null || true)
  if [[ -n $gigabytes && $gigabytes -lt $cores ]]; then
    cores=$((gigabytes > 0 ? gigabytes : 1))
  fi
  echo "$cores"
}
jobs=$(default_jobs)

stages=()

# stage NAME COMMAND...: runs the command between two lines; the second has its
# seconds. Ends the script with the command's status if it fails. A function
# runs without `set -e`: its status is that of its last command.
stage() {
  local name=$1 start=$SECONDS status=0
  shift
  echo "==> $name"
  "$@" < /dev/null || status=$?
  if [[ $status -ne 0 ]]; then
    echo "==> $name: FAILED after $((SECONDS - start)) s" >&2
    exit "$status"
  fi
  echo "==> $name: $((SECONDS - start)) s"
  stages+=("$name $((SECONDS - start)) s")
}

# build PRESET [TARGET...]: configures, then builds the targets or everything.
build() {
  local preset=$1
  shift
  stage "configure ($preset)" cmake --preset "$preset"
  stage "build ($preset)" cmake --build --preset "$preset" \
    --parallel "$jobs" ${1:+--target "$@"}
}

summary() {
  local IFS=,
  echo "==> done in $SECONDS s:${stages[*]/#/ }"
}
