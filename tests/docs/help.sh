#!/bin/bash
# Each script with flags prints its help, whatever folder it is called from.
#
#   tests/docs/help.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

root=$PWD count=0 failures=0
for script in *.sh docker/*.sh tests/*/*.sh; do
  # Others are sourced; this one has no flags.
  [[ -x $script && $script != tests/docs/help.sh ]] || continue
  grep -qE "take_flags .*--|'2,/\\^set/" "$script" || continue
  wanted=$(sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$script")
  # tests/cuda/run.sh knows no --help and prints it for every other flag, too.
  got=$(cd .. && "./${root##*/}/$script" --help 2>&1) || true
  if [[ $got != "$wanted" ]]; then
    echo "FAILED: $script --help printed '$got'" >&2
    failures=$((failures + 1))
  fi
  count=$((count + 1))
done
[[ $count -gt 15 ]] || { echo "FAILED: only $count scripts" >&2; exit 1; }
[[ $failures -eq 0 ]] || exit 1
echo "help: $count scripts"
