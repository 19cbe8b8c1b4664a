# shellcheck shell=bash
# Sourced by the checks: what several of them need.

PATH=$PATH:/usr/sbin:/sbin

# need TOOL...: ends the script with 77 if one of these programs is missing.
# "root" is the right to be it, "python3-NAME" Debian's package for its Python.
declare -A modules=([python3-yaml]=yaml
  [python3-prometheus-client]=prometheus_client.openmetrics.parser)
need() {
  local tool missing=()
  for tool in "$@"; do
    if [[ $tool == root ]]; then
      [[ $(id -u) -eq 0 ]] || missing+=(root)
    elif [[ $tool == namespaces ]]; then
      unshare --net --mount --pid --uts --fork true 2> /dev/null ||
        missing+=("namespaces (CAP_SYS_ADMIN)")
    elif [[ $tool == python3-* ]]; then
      /usr/bin/python3 -c "import ${modules[$tool]}" 2> /dev/null ||
        missing+=("$tool")
    else
      command -v "$tool" > /dev/null || missing+=("$tool")
    fi
  done
  [[ ${#missing[@]} -eq 0 ]] || { echo "missing: ${missing[*]}"; exit 77; }
}

# find_programs [DIR]: the first folder that has all four programs: DIR, or what
# was built.
find_programs() {
  local folder
  local folders=(build/dev/bin build/release/bin)
  [[ -z ${1-} ]] || folders=("$1")
  for folder in "${folders[@]}"; do
    if [[ -x $folder/gshard && -x $folder/gshard_coordinator &&
          -x $folder/gshard_router && -x $folder/gshard_expert_worker ]]; then
      (cd "$folder" && pwd)
      return
    fi
  done
  echo "missing: programs in ${folders[*]}" >&2
  exit 77
}

# install_python PACKAGE...: of PyPI, into $venv; ends the script with 77 if they
# are not to be had.
readonly venv=build/deploy_venv
install_python() {
  { [[ -x $venv/bin/python ]] || python3 -m venv "$venv"; } &&
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" ||
    { echo "missing: packages of PyPI ($*)"; exit 77; }
}

# run_inside FLAG...: runs this script again, with these flags, as the first
# process in namespaces of its own, and ends with its status. In there
# GSHARD_CHECK_INSIDE is the folder $scratch. What ends that shell ends all.
run_inside() {
  local status=0
  GSHARD_CHECK_INSIDE=$scratch unshare --net --mount --pid --uts --fork \
    --kill-child --mount-proc "$this_script" "$@" || status=$?
  exit "$status"
}

# fail WORD...: says so and ends.
fail() { echo "FAILED: $*" >&2; exit 1; }

# expect WANTED GOT WHAT
expect() { [[ $2 == "$1" ]] || fail "$3: expected '$1', got '$2'"; }

# call_translate MODEL URL FLAG...: one call of Translate, where gshard has streams.
# Of gRPC: a byte and the length before the message.
call_translate() {
  local model=$1 url=$2
  shift 2
  protoc -I proto --encode=gshard.v1.TranslateRequest gshard/v1/translation.proto \
    <<< "model: '$model' sentences { text: 'Kanada' source_language: 'de' }" \
    > "$scratch/message"
  { printf %b '\0\0\0\0' "$(printf '\\x%02x' "$(stat -c %s "$scratch/message")")"
    cat "$scratch/message"
  } > "$scratch/call"
  curl --silent --fail --output /dev/null "$@" --header "te: trailers" \
    --header "content-type: application/grpc" --data-binary "@$scratch/call" \
    "$url/gshard.v1.TranslationService/Translate"
}

# await SECONDS WHAT COMMAND...: until the command succeeds.
await() {
  local limit=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" > /dev/null 2>&1; do
    [[ $SECONDS -lt $limit ]] || fail "$what did not come about"
    sleep 0.2
  done
}
