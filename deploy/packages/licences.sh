#!/bin/bash
# Fails, naming them, if THIRD_PARTY.md lacks the licence of a package of
# deploy/packages/*.txt, or of one whose library the given programs load.
#
#   deploy/packages/licences.sh [PROGRAM...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# A row has a package, what it is, its version and its licence.
# shellcheck disable=SC2016  # backquotes of Markdown
listed=$(sed -nE 's/^\| `([^`]+)`( \| [^|]*[^| ]){3} \|$/\1/p' THIRD_PARTY.md)

# The packages that own the shared libraries of the programs.
loaded_by() {
  local library
  ldd "$@" | awk '$2 == "=>" && $3 ~ "^/" {print $3}' | sort -u |
    while read -r library; do
      library=$(readlink -f "$library")
      # Debian's list may have the file by its name before /usr was merged.
      { dpkg-query -S "$library" || dpkg-query -S "/usr$library" ||
        dpkg-query -S "${library#/usr}" ||
        echo "$library, which is of no package"; } 2> /dev/null
    done | sed 's/:.*//' | sort -u
}

wanted=$(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' \
  deploy/packages/*.txt)
if [[ $# -gt 0 ]] && command -v dpkg-query > /dev/null; then
  wanted+=$'\n'$(loaded_by "$@")
fi

missing=$(comm -23 <(sort -u <<< "$wanted") <(sort -u <<< "$listed"))
if [[ -n $missing ]]; then
  echo "THIRD_PARTY.md lacks: ${missing//$'\n'/ }" >&2
  exit 1
fi
echo "THIRD_PARTY.md has all $(sort -u <<< "$wanted" | wc -l) packages."
