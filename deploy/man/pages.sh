#!/bin/bash
# Writes the manual of a program, made of what its --help says: a page for the
# program and one for each of its commands, as gshard-train(1).
#
#   deploy/man/pages.sh PROGRAM SECTION VERSION FOLDER
#
# Needs help2man.
set -euo pipefail
program=$1 section=$2 version=$3 folder=$4
name=${program##*/}
export LC_ALL=C.UTF-8 TZ=UTC
# Else pages would differ from day to day.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
# What is set here would be shown as a default.
mapfile -t variables < <(compgen -e | grep '^GSHARD_' || true)
unset "${variables[@]}"

# page TITLE SUMMARY COMMAND: asks the command for help.
page() {
  local title=$1 summary=$2
  shift 2
  help2man --no-info --no-discard-stderr --section="$section" \
    --version-string="$version" --name="$summary" --source="gshard $version" \
    "$*" |
    # It takes the last word for the name.
    sed -E -e "s/^\.TH [^ ]+/.TH ${title^^}/" \
      -e "/^\.SH NAME/{n;s/^.* \\\\- /$title \\\\- /}" |
    gzip -9n > "$folder/$title.$section.gz"
}

mkdir -p "$folder"
help=$("$program" --help)
summary=${help%%$'\n\n'*}
summary=${summary//$'\n'/ }
page "$name" "${summary%.}" "$program"
sed -nE '/^Commands:/,/^$/s/^  (.*[^ ])  +([^ ].*)$/\1\t\2/p' <<< "$help" |
  while IFS=$'\t' read -r command summary; do
    read -ra words <<< "$command"
    page "$name-${command// /-}" "$summary" "$program" "${words[@]}"
  done
