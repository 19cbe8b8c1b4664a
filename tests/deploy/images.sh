#!/bin/bash
# Builds the images of docker/Dockerfile and looks at what they are.
#
#   tests/deploy/images.sh [--quick] [--preset PRESET] [--programs DIR]
#
#   --quick          no images: what the Dockerfile copies can be configured, and
#                    the files that images would have, from programs that are
#                    built already, as root of a process
#   --preset PRESET  of CMakePresets.json (release)
#   --programs DIR   images of these programs, in minutes, instead of from source;
#                    with --quick their files (build/dev/bin, build/release/bin)
#
# Without a daemon (buildah), twice with nothing kept between but the compiler's
# cache: both times the same digests. From source the first time compiles all,
# unless images were built here before: what was compiled outside of one is not
# found, for the compiler's file has another date there. Images run as containers
# on a read-only root. Layers stay in podman's storage, for the next time.
#
# Ends with 0 if all held, 1 if not, 77 if tools are missing.
# packages: podman buildah runc netavark debootstrap golang-github-containers-common catatonit python3 util-linux
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh
source tests/deploy/tools.sh
source tests/deploy/containers.sh

quick='' preset=release programs=''
take_flags quick! preset programs -- "$@"
readonly roles=(coordinator router expert-worker client) max_megabytes=120

program_of() {
  [[ $1 == client ]] && echo gshard || echo "gshard_${1//-/_}"
}

# ROOT ROLE: all that is in an image is in its bill of materials, and the other
# way round; and it is not too large.
check_contents() {
  local root=$1 sbom=$1/usr/share/doc/gshard/sbom.spdx.json megabytes
  [[ -r $sbom ]] || fail "$2 has no bill of materials"
  python3 - "$root" "$sbom" << 'PYTHON' || fail "the bill of materials of $2"
import hashlib, json, pathlib, re, sys
root, sbom = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
document = json.loads(sbom.read_text())
listed = {file["fileName"]: file["checksums"][1]["checksumValue"]
          for file in document["files"]}
there = {"./" + str(path.relative_to(root)):
         hashlib.sha256(path.read_bytes()).hexdigest()
         for path in root.rglob("*")
         if path.is_file() and not path.is_symlink() and path != sbom
         and path.relative_to(root).parts[0] not in ("proc", "dev", "sys", "run")}
# Mounted by whoever runs containers.
for name in ("./etc/hosts", "./etc/resolv.conf", "./etc/hostname"):
  there.pop(name, None)
wrong = [name for name in listed.keys() | there.keys()
         if listed.get(name) != there.get(name)]
assert not wrong, f"differs in {sorted(wrong)[:5]}"
packages = {package["name"]: package for package in document["packages"]}
for wanted in ("libgrpc++1.51", "libdnnl2", "libc6", "sentencepiece",
               "ca-certificates"):
  assert wanted in packages, f"lacks {wanted}"
for name, package in packages.items():
  assert re.fullmatch(r"[0-9][0-9A-Za-z.+:~-]*", package["versionInfo"]), package
owners = {r["relatedSpdxElement"]: r["spdxElementId"]
          for r in document["relationships"]
          if r["relationshipType"] == "CONTAINS"}
own = document["packages"][0]["SPDXID"]
for file in document["files"]:
  library = re.search(r"/lib/.*-linux-gnu/", file["fileName"])
  assert not library or owners[file["SPDXID"]] != own, file["fileName"]
# Libcurl trusts no server without them.
authorities = (root / "etc/ssl/certs/ca-certificates.crt").read_text()
assert authorities.count("BEGIN CERTIFICATE") > 100, "lacks authorities"
identifiers = [e["SPDXID"] for e in document["packages"] + document["files"]]
assert len(identifiers) == len(set(identifiers)), "an identifier stands twice"
PYTHON
  megabytes=$(($(du -s --apparent-size --block-size=1000 "$root" | cut -f 1) / 1000))
  echo "$2: $megabytes MB, $(find "$root" -type f | wc -l) files"
  [[ $megabytes -lt $max_megabytes ]] ||
    fail "$2 is larger than $max_megabytes MB"
}

# From here on, quickly: the files as an image has them, the root of a process.
lay_over() {
  mkdir -p "$scratch/root"
  cp -a "$scratch/files/common/." "$scratch/files/$1/." "$scratch/root/"
  cp -a "$scratch/files/owned/." "$scratch/root/"
  chown -R 65532:65532 "$scratch"/root/{data,state}
}
in_root() {
  unshare --mount --fork sh -c 'mount --bind "$0" "$0" &&
    mount -o remount,ro,bind "$0" && shift 0 && exec chroot \
    --userspec=65532:65532 "$0" "$@"' "$scratch/root" "$@"
}
# The build is configured from what the Dockerfile copies for it, and no more.
check_sources() {
  local words
  mkdir "$scratch/sources"
  while read -r -a words; do
    tar -c "${words[@]:1:${#words[@]}-2}" | tar -C "$scratch/sources" -x
  done < <(sed -n '/ AS build$/,/^FROM/{/^COPY [^-]/p}' docker/Dockerfile)
  (cd "$scratch/sources" && cmake --preset "$preset" -DGSHARD_TESTS=OFF) \
    > "$scratch/configure.log" 2>&1 ||
    { grep -m 1 -A 3 'CMake Error' "$scratch/configure.log" >&2
      fail "what the Dockerfile copies cannot be configured"; }
}
# The client as the process 1 that a container makes of it: it ends by SIGTERM,
# and so by Ctrl-C, although it waits for something.
check_signal() {
  local parent killer child status=0
  unshare --pid --fork --kill-child "$programs/gshard" wait --timeout 10s \
    --coordinator 127.0.0.1:1 > /dev/null 2>&1 &
  parent=$!
  while sleep 0.1; do
    # The line has no end.
    read -r child _ < "/proc/$parent/task/$parent/children" || true
    [[ -z $child ]] || kill -TERM "$child"
  done 2> /dev/null &
  killer=$!
  wait "$parent" || status=$?
  kill "$killer"
  expect 143 "$status" "exit code of the client after SIGTERM"
}

quickly() {
  local role program
  need root strip ldd gcc python3 unshare cmake
  programs=$(find_programs "$programs") || exit 77
  check_sources
  VERSION=1.0 docker/files.sh "$programs" "$scratch/files"
  for role in "${roles[@]}"; do
    program=/usr/bin/$(program_of "$role")
    lay_over "$role"
    check_contents "$scratch/root" "$role"
    in_root "$program" --help > /dev/null || fail "$role --help"
    rm -rf "$scratch/root"
  done
  check_signal
}

# IMAGE PATH: a field of its configuration.
field() { podman image inspect --format "{{$2}}" "$1"; }

# ROLE: its image is what the Dockerfile promises.
check_image() {
  local image=localhost/gshard-$1:check label mounted size
  expect 65532:65532 "$(field "$image" .Config.User)" "user of $1"
  expect "[/usr/bin/$(program_of "$1")]" \
    "$(field "$image" .Config.Entrypoint)" "entry point of $1"
  for label in title description licenses base.name revision version created; do
    [[ -n $(field "$image" "index .Labels \"org.opencontainers.image.$label\"") ]] ||
      fail "$1 has no label $label"
  done
  # Not those of what was built before, which the layers' cache has.
  expect "$(git describe --always --abbrev=40 --dirty)" "$(field "$image" \
    'index .Labels "org.opencontainers.image.revision"')" "revision of $1"
  expect "$(git log -1 --format=%ct)" "$(date +%s -d "$(field "$image" \
    'index .Labels "org.opencontainers.image.created"')")" "date of $1"
  expect "$(git log -1 --format=%ct)" \
    "$(field "$image" '.Created.Unix')" "date of $1's configuration"
  [[ $1 == client ]] ||
    expect "[CMD /usr/bin/$(program_of "$1") --probe=joined]" \
      "$(field "$image" .HealthCheck.Test)" "health check of $1"
  mounted=$(podman image mount "$image")
  check_contents "$mounted" "$1"
  podman image unmount "$image" > /dev/null
  size=$(field "$image" .Size)
  echo "$1: image of $((size / 1000000)) MB with its base and all layers"
  [[ $size -lt ${max_megabytes}000000 ]] ||
    fail "$1 is larger than $max_megabytes MB"
}

# ROLE FLAGS...: in a container with nothing that can be written but its volumes.
container() {
  local role=$1
  shift
  podman run --read-only --read-only-tmpfs=false --tmpfs /tmp --network=none \
    --cap-drop=all --security-opt=no-new-privileges "${run_flags[@]}" \
    "localhost/gshard-$role:check" "$@"
}

# A coordinator serves, says so to its probe, and ends with 0 when it is told to.
check_run() {
  local role name=gshard-check-$$
  run_flags=(--rm)
  for role in "${roles[@]}"; do
    container "$role" --help > /dev/null || fail "$role --help"
  done
  container coordinator 2> "$scratch/said" &&
    fail "a coordinator serves beyond the machine without TLS"
  grep -q -- --insecure "$scratch/said" || fail "it said: $(cat "$scratch/said")"
  run_flags=(--detach --name "$name" --env GSHARD_INSECURE=true)
  container coordinator --state_directory=/state > /dev/null
  containers+=("$name")
  await 30 "a coordinator that is healthy" podman healthcheck run "$name"
  podman exec "$name" /usr/bin/gshard_coordinator --probe=ready ||
    fail "the probe of a coordinator"
  podman exec "$name" /usr/bin/gshard_coordinator --probe=ready \
    --listen=127.0.0.1:1 2> /dev/null && fail "a probe of nobody succeeds"
  podman kill --signal TERM "$name" > /dev/null
  expect 0 "$(podman wait "$name")" "exit code after SIGTERM"
}

# Builds all images, with the compiler's cache of this machine where buildah keeps
# the one of the Dockerfile.
build_all() {
  local cache=${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/ccache}
  local start=$SECONDS from=(--build-arg "PRESET=$preset")
  [[ -z $programs ]] || from=(--programs "$programs")
  mkdir -p "$cache" /var/tmp/buildah-cache/root/.cache/ccache
  unshare --mount sh -c 'mount --bind "$0" \
    /var/tmp/buildah-cache/root/.cache/ccache && exec "$@"' "$cache" \
    docker/build.sh --tool buildah --tag check "${from[@]}" \
    -- --isolation=chroot --network=host > "$scratch/build.log" 2>&1 ||
    { tail -n 40 "$scratch/build.log" >&2; fail "the build"; }
  echo "built in $((SECONDS - start)) s"
}
# A line an image: it depends on every byte in it, names and dates too.
identities() {
  local role
  for role in "${roles[@]}"; do
    podman image inspect --format '{{.Id}}' "localhost/gshard-$role:check"
  done
}

# Builds again where no layer of the first time is.
check_again() {
  local base=docker.io/library/debian:bookworm-slim first
  first=$(identities)
  podman save --quiet $base > "$scratch/base.tar"
  cat > "$scratch/storage.conf" << TEXT
[storage]
driver = "overlay"
graphroot = "$scratch/storage"
runroot = "$scratch/storage-run"
TEXT
  export CONTAINERS_STORAGE_CONF=$scratch/storage.conf
  podman load --quiet --input "$scratch/base.tar" > /dev/null
  rm "$scratch/base.tar"
  build_all
  expect "$first" "$(identities)" "images of a second build"
  unset CONTAINERS_STORAGE_CONF
  echo "a second build: the same bytes"
}

scratch=$(mktemp -d -p "${TMPDIR:-/tmp}")
containers=()
cleanup() {
  unset CONTAINERS_STORAGE_CONF
  [[ ${#containers[@]} -eq 0 ]] ||
    podman rm --force --volumes "${containers[@]}" > /dev/null || true
  umount "$scratch/storage/overlay" 2> /dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 2' INT TERM

if [[ -n $quick ]]; then
  quickly
  exit 0
fi
need root podman buildah runc debootstrap python3 unshare
[[ -z $programs ]] || programs=$(find_programs "$programs") || exit 77
configure_containers
make_base
build_all
for role in "${roles[@]}"; do check_image "$role"; done
check_run
check_again
echo "images: all is well"
