#!/bin/bash
# Does what README.md tells a newcomer to do, in the order in which it is
# written, from text to translations: runs every line of its `sh` blocks from
# "The `gshard` command" to "What would it cost?", with a smaller model.
#
#   tests/docs/session.sh [--programs DIR] [--archive]
#
#   --programs DIR   folder of the programs (build/dev/bin)
#   --archive        makes the text by `gshard data debian`, as written, which
#                    fetches it; else that line takes text of this project
#
# Prints the lines as they are run. Exit code: 0 if all succeed, else 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=tests/testing/flags.sh
source tests/testing/flags.sh

programs=build/dev/bin archive=
take_flags programs archive! -- "$@"
programs=$(realpath "$programs")
project=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM

# blocks LANGUAGE FROM TO: the fenced blocks of README.md between two headings.
blocks() {
  awk -v fence="\`\`\`$1" -v from="## $2" -v to="## $3" '
    $0 == from { inside = 1 }
    $0 == to { inside = 0 }
    inside && $0 == fence { block = 1; next }
    /^```/ { block = 0 }
    block' README.md
}

mkdir "$scratch/bin" "$scratch/here"
# The lines are to have no options of a test, so this is where they are made.
cat > "$scratch/bin/gshard" << SCRIPT
#!/bin/bash
if [[ "\$1 \$2" == "data debian" && -z "$archive" ]]; then
  mkdir data
  tail -n +61 "$project/tests/data/names.tsv" > data/train.tsv
  head -n 60 "$project/tests/data/names.tsv" > data/test.tsv
  exit
fi
exec "$programs/gshard" "\$@"
SCRIPT
chmod +x "$scratch/bin/gshard"
ln -s "$project/deploy" "$scratch/here/deploy"

# What the text around the lines says is there: a job as it is printed, but with
# a model of seconds; files to translate.
blocks text 'The `gshard` command' "Translate as you like" |
  sed -n '/^name: "titles"/,/^serve_as:/p' |
  sed -e 's/model_width: 128 *ffn_width: 512 *expert_width: 512/model_width: 32 ffn_width: 64 expert_width: 64 heads: 2 head_width: 16 source_vocabulary_size: 300 target_vocabulary_size: 300 shared_vocabulary: true/' \
    -e 's/experts: 16/experts: 4/' -e 's/^steps: 2000/steps: 20/' \
    > "$scratch/here/job.textproto"
grep -q "^steps: 20$" "$scratch/here/job.textproto" ||
  { echo "the job of README.md is no longer what this script makes smaller" >&2
    exit 1; }
printf '%s\n' "Bibliothek" "Bibliothek zum Lesen" > "$scratch/here/book.txt"
printf '%s\n' "GIMP" "Bibliothek" > "$scratch/here/titles.txt"
printf 'Bibliothek\tlibrary\n' > "$scratch/here/terms.tsv"

# So that other systems and settings of this machine take no part.
while read -r variable; do unset "$variable"; done < <(
  compgen -e | grep '^GSHARD_' || true)
export GSHARD_DIRECTORY=$scratch/run PATH=$scratch/bin:$PATH
# `gshard explain` says that routers have to have it.
export GSHARD_ENABLE_DEBUG_CALLS=true

{
  echo 'set -eu'
  # shellcheck disable=SC2016
  echo 'trap '\''status=$?; kill %1 2> /dev/null && wait %1 || true; exit $status'\'' EXIT'
  blocks sh 'The `gshard` command' "Run the processes yourself" |
    while read -r line; do
      printf 'echo "--- "%q\n%s\n' "$line" "$line"
    done
} > "$scratch/session"
count=$(grep -c '^gshard ' "$scratch/session")
[[ $count -ge 15 ]] || { echo "README.md has only $count lines to run" >&2; exit 1; }
(cd "$scratch/here" && bash "$scratch/session") || { echo "FAILED: the last line above" >&2; exit 1; }
[[ -s $scratch/here/book.en.txt ]] || { echo "FAILED: no book.en.txt" >&2; exit 1; }
echo "all $count lines of README.md were run"
