#!/bin/bash
# Installs the Debian packages that the given lists name, where any is missing.
#
#   deploy/packages/install.sh deploy/packages/build.txt [LIST...]
#
# Uses sudo when not root. Leaves apt alone when everything is there already.
set -euo pipefail

# -h: no file names in front; what follows a # is a comment.
mapfile -t wanted < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$@")

if ! command -v dpkg-query apt-get > /dev/null; then
  echo "This is not a Debian system: nothing was installed. Needed are the" \
       "equivalents of: ${wanted[*]}" >&2
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null) ||
    status=absent
  [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "All ${#wanted[@]} packages are installed already."
  exit 0
fi
echo "Installing ${#missing[@]} packages: ${missing[*]}"

root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo > /dev/null; then
    echo "Neither root nor sudo. As root run: apt-get install" \
         "--no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  root=(sudo)
fi
apt() {
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
    -qq "$@" < /dev/null
}
# apt-get says every package it unpacks on standard output: kept for failures.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt update &&
       apt install --yes --no-install-recommends "${missing[@]}"; } \
     > "$log" 2>&1; then
  cat "$log" >&2
  echo "Installing packages failed; the last lines above say why." >&2
  exit 1
fi
