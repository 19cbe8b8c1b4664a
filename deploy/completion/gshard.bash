# shellcheck shell=bash
# Completion for gshard and the servers: commands, flags, choices and files.
#
# What there is to complete is read from --help of the very program that is
# being typed. Flags are offered as "--flag=", Boolean ones as "--flag"; behind
# a flag its choices are, files and folders where it takes a path.

_gshard() {
  local cur prev words cword split
  _init_completion -s || return
  local -a command=("${words[0]}")
  local help commands count name entry
  help=$("${command[@]}" --help 2> /dev/null) || return

  # One word or two are the command of `gshard`: flags come after it.
  commands=$(sed -nE '/^Commands:/,/^$/s/^  ([a-z]+( [a-z]+)?) .*/\1/p' <<< "$help")
  if [[ -n $commands ]]; then
    for count in 2 1; do
      ((cword > count)) || continue
      name="${words[*]:1:count}"
      if grep -qxF -- "$name" <<< "$commands"; then
        command+=("${words[@]:1:count}")
        help=$("${command[@]}" --help 2> /dev/null) || return
        break
      fi
    done
    if ((${#command[@]} == 1)); then
      # The next word of those that begin as typed so far.
      name="${words[*]:1:cword - 1}"
      mapfile -t COMPREPLY < <(compgen -W "--help
        $(sed -n "s/^${name:+$name }\([a-z]*\).*/\1/p" <<< "$commands" | sort -u)" \
        -- "$cur")
      return
    fi
  fi

  # What help says of the flag before, on one line: "--reduce=CHOICE who sums
  # ... (coordinator or gloo or nccl; default coordinator)".
  entry=
  if [[ $prev == --* ]]; then
    entry=$(awk -v flag="${prev//-/_}" '
      /^ ? ? ?[^ ]/ { name = $1; sub(/=.*/, "", name); gsub(/-/, "_", name) }
      /^ / && name == flag { printf "%s ", $0 }' <<< "$help")
  fi
  if [[ $entry =~ =CHOICE\ .*\(([^\;\)]*) ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${BASH_REMATCH[1]// or / }" -- "$cur")
  elif [[ $entry =~ ^\ *--[a-z_]+=(FILE|PATH) ]]; then
    _filedir
  elif [[ $entry =~ ^\ *--[a-z_]+=DIR ]]; then
    _filedir -d
  elif [[ $split == true || $entry =~ ^\ *--[a-z_]+= ]]; then
    return  # a number, a name: what only the user knows
  elif [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W \
      "$(sed -nE 's/^  (--[a-z_]+=?).*/\1/p' <<< "$help")" -- "$cur")
    [[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace
  else
    _filedir  # jobs, checkpoints
  fi
}
complete -F _gshard gshard gshard_coordinator gshard_router gshard_expert_worker
