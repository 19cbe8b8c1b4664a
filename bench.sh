#!/bin/bash
# How fast this is, beside what the machine can do and beside peers: builds the
# benchmarks and prints one table, with ratios, goals and whether they are
# reached. Ours and theirs take turns; medians of 5 rounds count.
#
#   ./bench.sh                      every row; leave the machine alone meanwhile
#   ./bench.sh --quick              2 shorter rounds, without torch.compile and
#                                   one of two jobs of M 512: 6 to 10 minutes
#                                   with AVX-512, 15 without
#   ./bench.sh --install-peers      first puts the peers, as PyPI has them, into
#                                   build/peers: 6 GB, most of it what PyTorch
#                                   brings for GPUs and nobody uses here
#   ./bench.sh --only ceilings,decode-int8   these groups of rows; one that does
#                                   not exist is answered with a list of them
#   ./bench.sh --json FILE          also writes the result to FILE; if that is
#                                   in tests/benchmark/results, draws the
#                                   history there anew
#   ./bench.sh --no-install         leave apt alone
#
# For example, a result to keep, after a commit:
#
#   ./bench.sh --install-peers --json tests/benchmark/results/2027-01-31.json
#
# Peers that are not there are rows "not measured". Needs Debian 12.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source deploy/packages/stages.sh

install=yes
peers=
result=
options=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) options+=(--quick); shift ;;
    --only) options+=(--only "${2:?--only takes names of groups}"); shift 2 ;;
    --json) result=${2:?--json takes a file}; shift 2 ;;
    --install-peers) peers=yes; shift ;;
    --no-install) install=no; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' bench.sh; exit 0 ;;
    *) echo "unknown option '$1'; see ./bench.sh --help" >&2; exit 2 ;;
  esac
done
results=tests/benchmark/results

# Peers that cannot be installed are rows "not measured", so each by itself.
install_peers() {
  local peer
  python3 -m venv build/peers || return
  while read -r peer; do
    build/peers/bin/pip install --quiet "$peer" ||
      echo "$peer could not be installed."
  done < <(sed 's/ *#.*//; /^$/d' tests/benchmark/peers/requirements.txt)
}

draw_history() { python3 tests/benchmark/history.py "$results"; }

if [[ $install == yes ]]; then
  stage "install packages" deploy/packages/install.sh \
    deploy/packages/build.txt ${peers:+deploy/packages/peers.txt}
fi
if [[ -n $peers ]]; then
  stage "install peers" install_peers
fi
mapfile -t benchmarks < <(python3 tests/benchmark/rows.py)
build release "${benchmarks[@]}"
stage "measure" python3 tests/benchmark/bench.py \
  --programs build/release/benchmark "${options[@]}" \
  ${result:+--json "$result"}
if [[ -n $result && $(realpath "$result") == $PWD/$results/* ]]; then
  stage "draw the history" draw_history
fi
summary
