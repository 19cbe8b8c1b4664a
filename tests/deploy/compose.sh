#!/bin/bash
# Brings deploy/compose up with a real Docker Engine, trains, translates, kills a
# worker, looks at what Prometheus sees, and brings it down.
#
#   tests/deploy/compose.sh [--quick] [--programs DIR]
#
#   --quick          reads the files only: what they name is there
#   --programs DIR   folder of the programs (build/dev/bin, build/release/bin)
#
# The images are the last stages of docker/Dockerfile over these programs. Where
# Docker lacks its Compose plugin, Debian 13's is used. Prometheus is that of
# Debian, under the name in compose.yaml. Grafana is started where its image can
# be pulled; else its files are only read. Docker and its networks are in
# namespaces of their own: nothing of them is left.
#
# Ends with 0 if all held, 1 if not, 77 if tools are missing.
# packages: docker.io iptables iproute2 util-linux prometheus python3 python3-yaml python3-prometheus-client openssl
# packages: curl protobuf-compiler
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh
source tests/deploy/tools.sh

quick='' programs=''
take_flags quick! programs -- "$@"

need python3-yaml
[[ -n ${GSHARD_CHECK_INSIDE-} ]] || /usr/bin/python3 tests/deploy/compose_files.py
[[ -z $quick ]] || exit 0

need python3-prometheus-client root docker dockerd curl protoc iptables ip prometheus openssl unshare namespaces
programs=$(find_programs "$programs") || exit 77

# Debian 13's plugin, unless there is one.
fetch_compose() {
  docker compose version > /dev/null 2>&1 && return
  local apt=$scratch/apt plugins=$scratch/docker/cli-plugins
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$plugins"
  # From where Debian 12 comes here.
  local archive
  archive=$(apt-get indextargets --format '$(REPO_URI)' \
    'Identifier: Packages' 'Codename: bookworm' | head -n 1)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
    "$archive trixie main" > "$apt/list"
  local from=(-qq -o "Dir::Etc::SourceList=$apt/list"
    -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$apt/lists"
    -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
  (cd "$apt" && apt-get "${from[@]}" update &&
    apt-get "${from[@]}" download docker-compose && dpkg -x ./*.deb plugin &&
    cp plugin/usr/libexec/docker/cli-plugins/docker-compose "$plugins") ||
    { echo "missing: the Compose plugin of Docker"; exit 77; }
  rm -rf "$apt"
}

if [[ -z ${GSHARD_CHECK_INSIDE-} ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  fetch_compose
  run_inside --programs "$programs"
fi
scratch=$GSHARD_CHECK_INSIDE
[[ ! -d $scratch/docker ]] || export DOCKER_CONFIG=$scratch/docker
export DOCKER_HOST=unix://$scratch/docker.sock DOCKER_BUILDKIT=0
# A copy, for it is written to: secrets.
mkdir -p "$scratch/tree/tests" "$scratch/tree/docker"
cp -r deploy "$scratch/tree"
cp -r tests/data "$scratch/tree/tests"
rm -rf "$scratch/tree/deploy/compose/secrets"

compose() { docker compose --file "$scratch/tree/deploy/compose/compose.yaml" "$@"; }
client() { compose run --rm --no-TTY client "$@" < /dev/null 2> "$scratch/client.log"; }

start_docker() {
  ip link set lo up
  dockerd --data-root "$scratch/data" --exec-root "$scratch/exec" \
    --host "$DOCKER_HOST" --pidfile "$scratch/pid" \
    --default-ulimit nofile=20000:20000 > "$scratch/dockerd.log" 2>&1 &
  dockerd=$!
  await 60 "a Docker Engine" docker info
}

# The last stages of the Dockerfile, over files of these programs.
make_images() {
  local role
  docker/files.sh "$programs" "$scratch/files/files"
  tar -C "$scratch/files" -c . | docker import - gshard-files > /dev/null
  { echo "ARG BASE=scratch"
    echo "FROM gshard-files AS files"
    sed -n '/^FROM scratch AS common/,$p' docker/Dockerfile
  } > "$scratch/Dockerfile"
  for role in coordinator router expert-worker client; do
    docker build --quiet --target "$role" --tag "gshard-$role" - \
      < "$scratch/Dockerfile" > "$scratch/build.log" 2>&1 ||
      { cat "$scratch/build.log" >&2; fail "the image of $role"; }
  done
}

# Debian's Prometheus with the entry point and user of the usual image.
make_prometheus() {
  local root=$scratch/prometheus image library
  image=$(compose config --images | grep prometheus)
  mkdir -p "$root"/{prometheus,tmp,etc}
  install -D "$(command -v prometheus)" "$root/bin/prometheus"
  ldd "$root/bin/prometheus" |
    sed -nE 's/.* => (\/[^ ]*) .*/\1/p; s/^\t(\/[^ ]*) .*/\1/p' |
    while read -r library; do install -D "$library" "$root$library"; done
  echo "nobody:x:65534:65534::/:/" > "$root/etc/passwd"
  chown 65534:65534 "$root/prometheus"
  tar -C "$root" -c . | docker import --change 'USER 65534' \
    --change 'ENTRYPOINT ["/bin/prometheus"]' --change 'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]' \
    - "$image" > /dev/null
}

# What a sentence is translated to, by experts that were all there.
translate() {
  client translate --from de --json --timeout 60s Neuseeland |
    python3 -c 'import json, sys
answer = json.load(sys.stdin)
assert answer["lost_choice_share"] == 0, answer
print(answer["hypotheses"][0]["text"])'
}

# QUERY VALUE: what Prometheus says.
value_is() {
  curl --silent --fail --get http://127.0.0.1:9090/api/v1/query \
    --data-urlencode "query=$1" | grep -q "\"value\":\[[^]]*,\"$2\"\]"
}

finish() {
  local status=$?
  if [[ $status -ne 0 ]]; then
    compose logs --tail 15 2> /dev/null | tail -n 60 >&2
    cat "$scratch/client.log" >&2
  fi
  compose --profile client down --volumes --timeout 5 > /dev/null 2>&1
  kill "$dockerd" && wait "$dockerd"
  exit "$status"
}

start_docker
trap finish EXIT
make_images
make_prometheus
"$scratch/tree/deploy/compose/secrets.sh" > /dev/null
services=(coordinator router expert_worker prometheus)
grafana=$(compose config --images | grep grafana)
if timeout 60 docker pull --quiet "$grafana" > /dev/null 2>&1; then
  services+=(grafana)
else
  echo "NO GRAFANA: $grafana cannot be pulled; its files were only read"
fi
start=$SECONDS
compose up --no-build --detach --wait "${services[@]}" > "$scratch/up.log" 2>&1 ||
  { cat "$scratch/up.log" >&2; fail "it does not come up"; }
echo "up after $((SECONDS - start)) s"

client wait --routers 2 --workers 4 > /dev/null || fail "members are missing"
sed -i 's/^steps: .*/steps: 60/' "$scratch/tree/deploy/compose/jobs/names.textproto"
client train /jobs/names.textproto --follow | tail -n 1
client wait --model names > /dev/null || fail "the model is not served"
before=$(translate) || fail "no translation"
echo "Neuseeland: $before"
for up in coordinator:1 router:2 expert_worker:4; do
  await 30 "$up targets that are up" \
    value_is "sum(up{job=\"gshard_${up%:*}\"})" "${up#*:}"
done
# A system at work: a second job trains while what the first has made translates.
sed 's/^name: .*/name: "more"/; s/^steps: .*/steps: 1000000/; s/^serve_as: .*//
     s,/data/names,/data/more,; $ a validation { max_sentences: 16 }
     s,^data {,data { dev_path: "/text/names.tsv",' \
  "$scratch/tree/deploy/compose/jobs/names.textproto" \
  > "$scratch/tree/deploy/compose/jobs/more.textproto"
client train /jobs/more.textproto > /dev/null
# By streams, as the client does, and by single calls.
secrets=$scratch/tree/deploy/compose/secrets
(while translate && call_translate names https://gshard:7001 --http2 \
   --connect-to gshard:7001:127.0.0.1:7001 --cacert "$secrets/ca.pem" \
   --cert "$secrets/client.pem" --key "$secrets/client.key" \
   --header "authorization: Bearer $(< "$secrets/token")"; do
   sleep 0.2
 done > /dev/null 2>&1) &
translating=$!
/usr/bin/python3 tests/deploy/monitoring.py live http://127.0.0.1:9090
kill "$translating"
wait "$translating" || true
client cancel more > /dev/null

docker kill gshard-expert_worker-1 > /dev/null
expect "$before" "$(translate)" "translation without a worker"
await 60 "the loss in Prometheus" \
  value_is 'sum(up{job="gshard_expert_worker"})' 3
client wait --workers 3 --model names > /dev/null ||
  fail "the model is not whole again"
expect "$before" "$(translate)" "translation by those that remain"
echo "a worker was killed: the same translation, with all its experts"

# A job that runs when all is stopped.
sed -i 's/^min_workers: .*/min_workers: 3/; s,/data/more,/data/last,; s/"more"/"last"/' \
  "$scratch/tree/deploy/compose/jobs/more.textproto"
client train /jobs/more.textproto > /dev/null
running() { client jobs last | grep -q running; }
await 60 "a job on the members that remain" running
compose stop > /dev/null 2>&1
compose logs coordinator | grep '"message":"job ends"' | grep -q '"job":"last".*/data/last/step-' ||
  fail "a job that was stopped has no checkpoint"
finished() { docker inspect --format '{{.State.FinishedAt}}' "gshard-$1"; }
for member in router-1 router-2 expert_worker-2 expert_worker-3 expert_worker-4; do
  [[ $(finished coordinator-1) < $(finished "$member") ]] ||
    fail "$member was stopped before the coordinator"
done
codes=$(compose ps --all --format '{{.Service}} {{.ExitCode}}' |
  grep -v -e '^prometheus ' -e '^grafana ' | sort | uniq -c | xargs)
expect "1 coordinator 0 3 expert_worker 0 1 expert_worker 137 2 router 0" \
  "$codes" "exit codes after SIGTERM"
echo "compose: all is well"
