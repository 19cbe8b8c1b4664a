#!/bin/bash
# Calls a router from Python: generates modules as README.md says, and as the
# installed example does, with Debian's tools and with PyPI's; translates with the
# example, over TLS with a certificate that names no host, where another router of
# the same target cannot translate.
#
#   tests/deploy/client.sh [--quick] [--programs DIR]
#
#   --quick          generates and imports the modules; no system
#   --programs DIR   folder of the programs in their build folder
#                    (build/dev/bin, build/release/bin)
#
# packages: cmake openssl protobuf-compiler protobuf-compiler-grpc python3 python3-venv
#
# Ends with 0 if all held, 77 if it lacks tools, programs or packages of PyPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh
# shellcheck source=tests/testing/small_job.sh
source tests/testing/small_job.sh
source tests/deploy/tools.sh

quick='' programs=''
take_flags quick! programs -- "$@"
need cmake openssl protoc grpc_python_plugin python3
programs=$(find_programs "$programs") || exit 77
install_python 'grpcio-tools==1.*'

scratch=$(mktemp -d)
pids=()
cleanup() {
  local status=$?
  [[ $status -ne 1 ]] || tail -n 5 "$scratch"/*.log >&2 || true
  [[ ${#pids[@]} -eq 0 ]] || kill -TERM "${pids[@]}" 2> /dev/null || true
  wait
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 2' INT TERM

cmake --install "$programs/.." --prefix "$scratch" --component gshard-common \
  > "$scratch/install.log"
python=$PWD/$venv/bin/python
example=$(find "$scratch/share" -name translate.py)
for generate in 'protoc .*grpc_python_plugin' 'python3 -m grpc_tools.protoc'; do
  generate=$(grep -m 1 "^$generate" README.md) || fail "README.md does not use $generate"
  (cd "$scratch/share/gshard" && rm -rf gshard && eval "${generate/#python3/$python}" &&
    "$python" -c 'import gshard.v1.coordinator_pb2_grpc, gshard.v1.translation_pb2_grpc') ||
    fail "README.md generates no modules: $generate"
done
"$python" "$example" --help > /dev/null || fail "$example --help"
printf 'a\nb\xff\n' | "$python" "$example" 2> "$scratch/utf8.log" &&
  fail "$example takes what is not UTF-8"
grep -q '^line 2: expected UTF-8' "$scratch/utf8.log" || fail "$example: $(cat "$scratch/utf8.log")"
# With protoc where there is one, else with grpcio-tools.
for path in "$PATH" /nonexistent; do
  mkdir "$scratch/stubs"
  PATH=$path "$python" -c 'import importlib.util, sys
spec = importlib.util.spec_from_file_location("example", sys.argv[1])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
messages, services = example.make_stubs(sys.argv[2])
print(messages.TranslateRequest, services.TranslationServiceStub)' \
    "$example" "$scratch/stubs" > "$scratch/stubs.log" || fail "$example makes no stubs"
  rm -r "$scratch/stubs"
done
[[ -z $quick ]] || exit 0

deploy/tls/certificates.sh "$scratch/tls" server:member client:ops \
  > "$scratch/tls.log" 2>&1
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}
ready_port=$(free_port) unready_port=$(free_port)
secure=(--metrics_address= --tls_certificate="$scratch/tls/member.pem"
  --tls_key="$scratch/tls/member.key" --tls_ca="$scratch/tls/ca.pem"
  --tls_peer_name=gshard)
ready=(--listen="127.0.0.1:$ready_port"
  --coordinator="unix:$scratch/run/coordinator.sock" "${secure[@]}")
unready=(--listen="127.0.0.1:$unready_port"
  --coordinator="unix:$scratch/nobody" "${secure[@]}")
export GSHARD_DIRECTORY=$scratch/run
"$programs/gshard" up > "$scratch/up.log" 2>&1 &
pids+=($!)
"$programs/gshard" wait > /dev/null
"$programs/gshard_router" "${ready[@]}" > "$scratch/ready.log" 2>&1 &
pids+=($!)
"$programs/gshard_router" "${unready[@]}" > "$scratch/unready.log" 2>&1 &
pids+=($!)
small_job names "$scratch/checkpoints" 20 'serve_as: "names"' \
  > "$scratch/job.textproto"
"$programs/gshard" train "$scratch/job.textproto" --follow \
  > "$scratch/train.log" 2>&1 || fail "training failed"
await 60 "a router with a model" \
  "$programs/gshard_router" "${ready[@]}" --probe=ready
await 60 "a router without" "$programs/gshard_router" "${unready[@]}" --probe=live

translate() {
  printf 'Neuseeland\n\nKanada\n' | "$python" "$example" --from de \
    --router "ipv4:127.0.0.1:$unready_port,127.0.0.1:$ready_port" \
    --tls_ca "$scratch/tls/ca.pem" --tls_certificate "$scratch/tls/ops.pem" \
    --tls_key "$scratch/tls/ops.key" "$@"
}
wanted=$(printf 'Neuseeland\n\nKanada\n' |
  "$programs/gshard" translate --from de)
got=$(translate --tls_peer_name gshard) || fail "the example does not translate"
expect "$wanted" "$got" "the example's translations"
got=$(translate 2>&1) && fail "a name that no certificate has was accepted"
[[ $got == "unavailable: "* ]] || fail "expected 'unavailable: ...', got '$got'"
echo "client: all is well"
