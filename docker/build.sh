#!/bin/bash
# Builds the images of the roles, reproducibly: version, revision and dates are
# those of the commit, and the same commit on the same base gives the same bytes.
#
#   docker/build.sh                      all: gshard-coordinator, gshard-router,
#                                        gshard-expert-worker, gshard-client
#   docker/build.sh router client        these
#   docker/build.sh --tag 1.2            gshard-router:1.2 and so on (latest)
#   docker/build.sh --tool buildah       without a daemon (docker)
#   docker/build.sh --programs DIR       of programs that were built here, which
#                                        is to be the Debian of the Dockerfile,
#                                        instead of from source
#   docker/build.sh --build-arg A=B      an ARG of docker/Dockerfile, e.g. BASE,
#                                        CUDA, or SOURCE, where the source is
#
# Docker needs its buildx plugin. Flags after -- go to the tool.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool=docker tag=latest programs='' targets=() arguments=() flags=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --tool) tool=${2:?--tool takes docker or buildah}; shift 2 ;;
    --tag) tag=${2:?--tag takes a name}; shift 2 ;;
    --programs) programs=${2:?--programs takes a folder}; shift 2 ;;
    --build-arg) arguments+=("${2:?--build-arg takes A=B}"); shift 2 ;;
    --) shift; flags+=("$@"); break ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' docker/build.sh; exit 0 ;;
    -*) echo "unknown option '$1'; see docker/build.sh --help" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done
[[ ${#targets[@]} -gt 0 ]] || targets=(coordinator router expert-worker client)

version=$(sed -nE 's/^project\(gshard VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
revision=$(git describe --always --abbrev=40 --dirty 2> /dev/null || true)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || echo 0)}
arguments+=("VERSION=$version" "REVISION=$revision" "SOURCE_DATE_EPOCH=$epoch"
            "CREATED=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)")
flags+=("${arguments[@]/#/--build-arg=}")

# With --programs the last stages, over a folder that has what the one before
# would have made.
context=. dockerfile=$(< docker/Dockerfile)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -n $programs ]]; then
  context=$scratch
  VERSION=$version SOURCE_DATE_EPOCH=$epoch \
    docker/files.sh "$programs" "$context/files"
  dockerfile=$(
    sed -n '/^ARG BASE=/p' docker/Dockerfile
    printf '%s\n' "FROM scratch AS files" "COPY files /files"
    sed -n '/^FROM scratch AS common/,$p' docker/Dockerfile)
fi
# buildah finds a layer in its cache by the text of its instruction, before
# values are put in: it would take labels, and files' dates, of another commit.
if [[ $tool == buildah ]]; then
  for argument in "${arguments[@]}"; do
    dockerfile=${dockerfile//"\${${argument%%=*}}"/"${argument#*=}"}
  done
fi
echo "$dockerfile" > "$scratch/Dockerfile"

# IMAGE: of buildah, made one that is the same each time.
settle() {
  local folder
  folder=$(mktemp -d)
  buildah push --quiet "$1" "dir:$folder/image"
  docker/image_config.py "$folder/image"
  buildah tag "$(buildah pull --quiet "dir:$folder/image")" "$1"
  rm -rf "$folder"
}

for target in "${targets[@]}"; do
  image=gshard-$target:$tag
  case $tool in
    # Neither attestations nor layers have times of their own.
    docker)
      docker buildx build -f "$scratch/Dockerfile" --target "$target" \
        --provenance=false "${flags[@]}" --output \
        "type=docker,name=$image,rewrite-timestamp=true" "$context" ;;
    # Health checks are Docker's: OCI's format has none.
    buildah)
      buildah bud -f "$scratch/Dockerfile" --target "$target" --layers \
        --format docker --timestamp "$epoch" "${flags[@]}" -t "$image" "$context"
      settle "$image" ;;
    *) echo "--tool takes docker or buildah, got '$tool'" >&2; exit 2 ;;
  esac
done
