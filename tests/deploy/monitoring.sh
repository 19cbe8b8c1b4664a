#!/bin/bash
# Checks deploy/monitoring.
#
#   tests/deploy/monitoring.sh --quick        generated files are what generate.py
#                                             makes, alerts have a runbook and
#                                             tests, rules keep namespaces apart,
#                                             dashboards say what they show; seconds
#   tests/deploy/monitoring.sh                also promtool's own checks and the
#                                             tests of the rules, Grafana's schema
#                                             of dashboards, from PyPI, and a
#                                             Prometheus that scrapes a system
#                                             which trains and translates: every
#                                             expression has data, what is scraped
#                                             is valid text and OpenMetrics, and
#                                             exemplars lead to traces; two minutes
#   tests/deploy/monitoring.sh --programs DIR of the programs (build/dev/bin)
#   tests/deploy/monitoring.sh --port N       of 127.0.0.1, and the 7 after it
#                                             (19460)
#
# Ends with 0 if all held, 77 if tools are missing. That metrics of these names
# exist in the code is a part of layering_test.
# packages: python3-yaml python3-prometheus-client prometheus curl openssl protobuf-compiler
# packages: python3-venv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh
# shellcheck source=tests/testing/small_job.sh
source tests/testing/small_job.sh
source tests/deploy/tools.sh

quick='' programs='' port=19460
take_flags quick! programs port -- "$@"

need python3-yaml
if [[ -z $quick ]]; then
  need python3-prometheus-client prometheus promtool curl openssl protoc
  programs=$(find_programs "$programs") || exit 77
fi

python3 deploy/monitoring/generate.py --check
/usr/bin/python3 tests/deploy/monitoring.py files
[[ -z $quick ]] || exit 0

promtool check config deploy/monitoring/prometheus.yml
promtool test rules deploy/monitoring/tests/*.yml
# By the schema of the release that deploy/compose runs.
release=$(sed -nE 's,.*image: grafana/grafana:,,p' deploy/compose/compose.yaml)
install_python "grafana-foundation-sdk==1769699681!$release"
"$venv/bin/python" tests/deploy/boards.py deploy/monitoring/dashboards/*.json

scratch=$(mktemp -d)
pids=()
cleanup() {
  kill -TERM "${pids[@]}" 2> /dev/null || true
  wait || true
  rm -rf "$scratch"
}
trap cleanup EXIT

# What a system says of itself: the coordinator, 2 routers, 2 workers, all of
# whose work is traced.
collector=$((port + 6))
export GSHARD_DIRECTORY=$scratch/run GSHARD_PER_EXPERT_METRICS=true
"$programs/gshard" up --processes --routers 2 --workers 2 \
  --metrics_port_base "$port" --otlp_endpoint "http://127.0.0.1:$collector" \
  --trace_sample_ratio 1 > "$scratch/up.log" 2>&1 &
pids+=($!)
# Another coordinator, which has a certificate.
secure=$((port + 7))
deploy/tls/certificates.sh "$scratch/tls" server:member,127.0.0.1 > /dev/null 2>&1
"$programs/gshard_coordinator" --listen="unix:$scratch/secure" \
  --metrics_address="127.0.0.1:$secure" --tls_certificate="$scratch/tls/member.pem" \
  --tls_key="$scratch/tls/member.key" --tls_ca="$scratch/tls/ca.pem" \
  > "$scratch/secure.log" 2>&1 &
pids+=($!)
"$programs/gshard" wait --routers 2 --workers 2 --timeout 2m

# The rules and names of jobs of prometheus.yml, but faster, and at these ports.
sed "s#rules.yml#$PWD/deploy/monitoring/rules.yml#; s#_interval: .*#_interval: 1s#
s#dns_sd_configs: .*\[coordinator\].*#static_configs: [{targets: [127.0.0.1:$port]}]#
s#dns_sd_configs: .*\[router\].*#static_configs: [{targets: [127.0.0.1:$((port + 1)), 127.0.0.1:$((port + 2))]}]#
s#dns_sd_configs: .*\[expert_worker\].*#static_configs: [{targets: [127.0.0.1:$((port + 3)), 127.0.0.1:$((port + 4))]}]#" \
  deploy/monitoring/prometheus.yml > "$scratch/prometheus.yml"
cat >> "$scratch/prometheus.yml" << EOF
  - job_name: gshard_secure
    static_configs: [{targets: [127.0.0.1:$secure]}]
EOF
prometheus --enable-feature=exemplar-storage --config.file="$scratch/prometheus.yml" \
  --storage.tsdb.path="$scratch/data" \
  --web.listen-address="127.0.0.1:$((port + 5))" \
  > "$scratch/prometheus.log" 2>&1 &
pids+=($!)

# Two jobs: the second trains while what the first has made translates.
job() {
  small_job "$1" "$scratch/$1" "$2" "validation { max_sentences: 16 }" \
    "data { train_path: \"$PWD/tests/data/names.tsv\"
            dev_path: \"$PWD/tests/data/names.tsv\" }" \
    "checkpoint every_steps: 10" "serve_as: \"$1\""
}
job first 20 > "$scratch/first.textproto"
job second 1000000 > "$scratch/second.textproto"
"$programs/gshard" train "$scratch/first.textproto" --follow
"$programs/gshard" wait --model first --timeout 1m
"$programs/gshard" train "$scratch/second.textproto"
# By streams, as gshard does, and by single calls.
(while "$programs/gshard" translate --model first --from de Neuseeland Kanada &&
   call_translate first http://localhost --http2-prior-knowledge \
     --unix-socket "$GSHARD_DIRECTORY/router-0.sock"; do
   sleep 0.2
 done > "$scratch/translate.log" 2>&1) &
pids+=($!)

/usr/bin/python3 tests/deploy/monitoring.py live \
  "http://127.0.0.1:$((port + 5))" "$collector"
for offset in 0 1 3; do
  curl --silent --fail "http://127.0.0.1:$((port + offset))/metrics" |
    promtool check metrics
done
