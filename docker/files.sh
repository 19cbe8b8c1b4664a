#!/bin/bash
# Collects the files of the images, a folder for each, from the programs and from
# the Debian system that this runs on:
#
#   docker/files.sh PROGRAMS OUT
#
# OUT/common has what the programs load, the program spm_train, which trains
# tokenizers, the authorities that HTTPS trusts, and the licences of all;
# OUT/owned the folders that the programs write to; OUT/<role> the program and, as
# usr/share/doc/gshard/sbom.spdx.json, the list of the image's contents
# (docker/sbom.py). Packages are named under var/lib/dpkg/status.d, where scanners
# look. VERSION and SOURCE_DATE_EPOCH are those of the image: the same programs
# and packages give the same bytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
programs=${1:?the folder of the programs} out=${2:?the folder to make}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} LC_ALL=C.UTF-8
umask 022
common=$out/common
mkdir -p "$common"

# FILE...: remembers the packages that they are of; asking dpkg takes its time.
# Debian's list may have a file by its name before /usr was merged.
declare -A package_of
learn() {
  local file package path names=()
  for file in "$@"; do
    file=$(readlink -f "$file")
    names+=("$file" "${file#/usr}")
  done
  # Of what is of no package it says so, and fails: libraries of CUDA.
  while IFS=' ' read -r package path; do
    package_of[/usr${path#/usr}]=${package%%:*}
  done < <(dpkg-query -S "${names[@]}" 2> /dev/null)
}

# FILE PLACE [PACKAGE]: adds it, and what there is to say of its package.
add() {
  local status=$common/var/lib/dpkg/status.d path package
  path=$(readlink -f "$1")
  package=${3:-${package_of[/usr${path#/usr}]-}}
  install -D -m "$(stat -L -c %a "$1")" "$1" "$common/$2"
  [[ -n $package ]] || return 0
  mkdir -p "$status"
  if [[ ! -e $status/$package ]]; then
    dpkg-query -s "$package" > "$status/$package"
    add "/usr/share/doc/$package/copyright" "usr/share/doc/$package/copyright" \
      "$package"
  fi
  (cd "$common" && md5sum "$2") >> "$status/$package.md5sums"
}

# The links of a system whose /usr is merged.
for folder in bin lib lib64; do
  mkdir -p "$common/usr/$folder"
  ln -s "usr/$folder" "$common/$folder"
done

multiarch=$(gcc -print-multiarch)
mapfile -t libraries < <(
  ldd "$programs"/gshard{_coordinator,_router,_expert_worker,,_sentencepiece.so} \
    /usr/bin/spm_train |
    sed -nE 's/.* => (\/[^ ]*) .*/\1/p; s/^\t(\/[^ ]*) .*/\1/p' | sort -u)
licences=(/usr/share/common-licenses/*)
learn /usr/bin/spm_train /usr/lib/os-release "${libraries[@]}" "${licences[@]}"
add /usr/bin/spm_train usr/bin/spm_train
add /usr/lib/os-release usr/lib/os-release
for library in "${libraries[@]}"; do
  name=${library##*/}
  add "$library" "usr/lib/$multiarch/$name"
  # Programs name their loader by its path; libraries look for it among them.
  [[ $name != ld-linux* ]] ||
    ln -s "/usr/lib/$multiarch/$name" "$common/usr${library#/usr}"
done
# To which the copyright files refer.
for licence in "${licences[@]}"; do
  [[ -L $licence ]] || add "$licence" "${licence#/}"
done

# Where Debian's libcurl looks, without what this machine alone trusts.
cat /usr/share/ca-certificates/mozilla/*.crt > "$out/authorities"
add "$out/authorities" etc/ssl/certs/ca-certificates.crt ca-certificates
rm "$out/authorities"

mkdir -p "$common/etc" "$out"/owned/{data,state}
ln -s ../usr/lib/os-release "$common/etc/os-release"
echo "hosts: files dns" > "$common/etc/nsswitch.conf"
printf '%s\n' "root:x:0:0:root:/:/sbin/nologin" \
  "gshard:x:65532:65532:gshard:/data:/sbin/nologin" > "$common/etc/passwd"
printf '%s\n' "root:x:0:" "gshard:x:65532:" > "$common/etc/group"
install -d -m 1777 "$common/tmp"
# Found beside the program or in ../lib/gshard.
install -D "$programs/gshard_sentencepiece.so" -t "$common/usr/lib/gshard"
install -D -m 644 LICENSE THIRD_PARTY.md -t "$common/usr/share/doc/gshard"
strip "$common/usr/lib/gshard/gshard_sentencepiece.so"

for role in coordinator router expert-worker client; do
  program=gshard_${role//-/_}
  [[ $role != client ]] || program=gshard
  install -D "$programs/$program" -t "$out/$role/usr/bin"
  strip "$out/$role/usr/bin/$program"
  mkdir -p "$out/$role/usr/share/doc/gshard"
  docker/sbom.py "gshard-$role" "${VERSION:-0}" "$common" "$out/$role" \
    > "$out/sbom.json"
  mv "$out/sbom.json" "$out/$role/usr/share/doc/gshard/sbom.spdx.json"
done
find "$out" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
