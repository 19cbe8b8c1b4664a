# shellcheck shell=bash
# Sourced by the scripts of tests, after they went to the project's root: their
# flags.

# The script's path. $0 is one from where it was called.
this_script=$(cd "$OLDPWD" && realpath "$0")

# take_flags FLAG... -- ARGUMENT...: of the arguments `--FLAG VALUE` sets the
# variable FLAG, with `_` for `-`, and `--FLAG`, if it is listed as FLAG!, sets
# it to "yes". --help prints the comment that the script begins with. An argument
# that is none of these ends the script with 2.
take_flags() {
  local flags=" " flag
  while [[ $1 != -- ]]; do
    flags+="$1 "
    shift
  done
  shift
  while [[ $# -gt 0 ]]; do
    flag=${1#--}
    if [[ $1 == -h || $1 == --help ]]; then
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$this_script"
      exit 0
    elif [[ $1 == --* && $flags == *" $flag! "* ]]; then
      printf -v "${flag//-/_}" yes
      shift
    elif [[ $1 == --* && $flags == *" $flag "* ]]; then
      [[ $# -gt 1 ]] || { echo "$1 takes a value; see $0 --help" >&2; exit 2; }
      printf -v "${flag//-/_}" %s "$2"
      shift 2
    else
      echo "unknown option '$1'; see $0 --help" >&2
      exit 2
    fi
  done
}
