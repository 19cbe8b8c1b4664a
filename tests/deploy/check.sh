#!/bin/bash
# Checks what deploys the system by running it.
#
#   tests/deploy/check.sh                 all, quickly: what takes seconds, with
#                                         the tools that are there
#   tests/deploy/check.sh --all           all, whole: real images, a Compose
#                                         stack, a Slurm cluster; half an hour
#   tests/deploy/check.sh slurm images    these, whole
#   tests/deploy/check.sh --quick slurm   these, quickly
#   tests/deploy/check.sh --install slurm installs the Debian packages that these
#                                         need, and runs nothing
#
# Each is a script beside this one, which has its own flags (--help): images,
# compose, kubernetes, monitoring, slurm, storage, packages, client. It ends with
# 0 if all held, 77 if it lacks tools, else something failed. Debian packages that
# it needs are named in it after "# packages:".
#
# Ends with 0 if nothing failed; what lacked its tools is told, and fails only if
# it was named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

all=(images compose kubernetes monitoring slurm storage packages client)
names=() flags=() quick='' do=run
while [[ $# -gt 0 ]]; do
  case $1 in
    --all) names=("${all[@]}"); shift ;;
    --quick) quick=yes; shift ;;
    --install) do=install; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' tests/deploy/check.sh; exit 0 ;;
    -*) echo "unknown option '$1'; see $0 --help" >&2; exit 2 ;;
    *) [[ " ${all[*]} " == *" $1 "* ]] ||
         { echo "no check '$1': there are ${all[*]}" >&2; exit 2; }
       names+=("$1"); shift ;;
  esac
done
named=${#names[@]}
if [[ $named -eq 0 ]]; then
  names=("${all[@]}") quick=yes
fi
[[ -z $quick ]] || flags=(--quick)

failed=() lacking=()
for name in "${names[@]}"; do
  script=tests/deploy/$name.sh
  [[ -x $script ]] || continue
  if [[ $do == install ]]; then
    sed -nE 's/^# packages: *//p' "$script" | tr ' ' '\n' |
      deploy/packages/install.sh /dev/stdin
    continue
  fi
  echo "==> check $name${quick:+, quickly}"
  start=$SECONDS status=0
  "$script" "${flags[@]}" < /dev/null || status=$?
  case $status in
    0) echo "==> check $name: $((SECONDS - start)) s" ;;
    77) lacking+=("$name")
        echo "==> check $name: NOT DONE; for its tools:" \
             "tests/deploy/check.sh --install $name" ;;
    *) failed+=("$name")
       echo "==> check $name: FAILED after $((SECONDS - start)) s" >&2 ;;
  esac
done
[[ ${#lacking[@]} -eq 0 ]] || echo "not done, for lack of tools: ${lacking[*]}"
[[ ${#failed[@]} -eq 0 ]] || { echo "failed: ${failed[*]}" >&2; exit 1; }
[[ ${#lacking[@]} -eq 0 || $named -eq 0 ]] || exit 77
