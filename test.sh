#!/bin/bash
# Installs what is missing, builds everything and runs every test.
#
#   ./test.sh                  the dev preset: what a change has to pass
#   ./test.sh --preset asan    under AddressSanitizer and UBSan
#   ./test.sh --preset tsan    under ThreadSanitizer
#   ./test.sh --fast           only unit tests, within a minute once built
#   ./test.sh --filter REGEX   only the tests whose names match
#   ./test.sh --jobs N         N compilers at a time
#   ./test.sh --no-install     leave apt alone
#
# After all tests of the dev preset it checks what deploys the system, as far as
# tools are there and in seconds; for real images, Compose, Slurm and more name
# them: tests/deploy/check.sh --help
#
# Needs Debian 12 and nothing else: a bare root with apt and bash will do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source deploy/packages/stages.sh

preset=dev
filter=
only=()
install=yes
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=${2:?--preset takes dev, release, asan or tsan}; shift 2 ;;
    # Many wait for a clock or a socket: more of them than there are cores.
    --fast) only=(-L fast -j 4); shift ;;
    --filter) filter=${2:?--filter takes a regular expression}; shift 2 ;;
    --jobs) jobs=${2:?--jobs takes a number}; shift 2 ;;
    --no-install) install=no; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' test.sh; exit 0 ;;
    *) echo "unknown option '$1'; see ./test.sh --help" >&2; exit 2 ;;
  esac
done

if [[ $install == yes ]]; then
  stage "install packages" deploy/packages/install.sh deploy/packages/build.txt
fi
build "$preset"

# ThreadSanitizer of GCC 12 needs the addresses that old kernels gave out.
fixed_addresses=()
if [[ $preset == tsan ]] && setarch -R true 2> /dev/null; then
  fixed_addresses=(setarch -R)
fi
stage "test ($preset)" "${fixed_addresses[@]}" ctest --preset "$preset" \
  "${only[@]}" ${filter:+-R "$filter"}
if [[ $preset == dev && ${#only[@]} -eq 0 && -z $filter ]]; then
  stage "check deployment" tests/deploy/check.sh
fi
summary
