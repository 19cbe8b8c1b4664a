# shellcheck shell=bash
# Sourced by packages.sh: a bare Debian in a folder, and what packages do there.
#
# Uses `build`, `cache`, `scratch`, `packages`, `roles` and fail().

root=''
members=() debs=()

inside() {
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive HOME=/root "$@"
}

# A Debian with nothing but apt, in a network that has but itself. What apt
# fetches is kept beside the one that is copied.
enter_root() {
  local kept=$cache/bookworm
  mkdir -p "$cache/archives/partial"
  if [[ ! -e $kept/etc/apt/sources.list ]]; then
    rm -rf "$kept.new"
    PATH=$PATH:/usr/sbin debootstrap --variant=minbase bookworm "$kept.new" \
      > "$scratch/debootstrap.log" ||
      { tail -n 5 "$scratch/debootstrap.log" >&2; exit 1; }
    rm -rf "$kept.new/var/cache/apt/archives"/*.deb
    mv "$kept.new" "$kept"
  fi
  cp -a "$kept" "$scratch/root"
  root=$scratch/root
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  mount --bind "$cache/archives" "$root/var/cache/apt/archives"
  mount -t proc proc "$root/proc"
  mkdir "$root/debs"
}

leave_root() {
  stop_members || true
  umount "$root/proc" "$root/var/cache/apt/archives" || true
  root=''
}

make_packages() {
  rm -rf "$build/packages"
  (cd "$build" && cpack -G DEB --config CPackConfig.cmake) \
    > "$scratch/cpack.log" 2>&1 || { tail "$scratch/cpack.log" >&2; exit 1; }
  local package
  for package in "${packages[@]}"; do
    [[ -e $(deb_of "$package") ]] || fail "cpack made no $package"
  done
  ls -sh "$build/packages"
}

deb_of() { echo "$build/packages/$1"_[0-9]*.deb; }

# What a package says of itself is what it needs.
check_control() {
  local package wanted
  for package in "${packages[@]}"; do
    wanted=libc6
    case $package in
      gshard-common) wanted+=" libsentencepiece0" ;;
      gshard-coordinator)
        wanted+=" gshard-common adduser sentencepiece libgrpc++1.51 libsqlite3-0"
        wanted+=" ca-certificates" ;;
      gshard) wanted+=" gshard-common libgrpc++1.51 libdnnl2 ca-certificates" ;;
      *) wanted+=" gshard-common adduser libgrpc++1.51 libdnnl2 ca-certificates" ;;
    esac
    for wanted in $wanted; do
      dpkg-deb --field "$(deb_of "$package")" Depends | grep -qwF -- "$wanted" ||
        fail "$package does not depend on $wanted"
    done
  done
  lintian --tag-display-limit 0 --suppress-tags initial-upload-closes-no-bugs \
    "$build/packages"/*.deb > "$scratch/lintian" 2>&1 || true
  cat "$scratch/lintian"
  ! grep -q '^E:' "$scratch/lintian" || fail "lintian has errors"
}

install_packages() {
  cp "$build/packages"/*.deb "$root/debs"
  mapfile -t debs < <(cd "$root" && printf '/%s\n' debs/*.deb)
  {
    inside apt-get update -qq &&
      inside apt-get install -qq --yes --no-install-recommends \
        "${debs[@]}" man-db bash-completion
  } > "$scratch/apt.log" 2>&1 || { tail "$scratch/apt.log" >&2; exit 1; }
}

# unit UNIT: runs what the unit does, with its environment, as its user.
unit() {
  local name=$1 instance=${1#*@} file line role command
  local -a variables=()
  instance=${instance%.service}
  file=$root/usr/lib/systemd/system/${name/@*/@}
  [[ $name == *@* ]] && file+=.service
  role=$(sed -nE 's,^EnvironmentFile=/etc/gshard/(.*)\.env$,\1,p' "$file")
  while read -r line; do variables+=("$line"); done < <(
    grep -E '^[A-Z_]+=' "$root/etc/gshard/$role.env")
  command=$(sed -n 's/^ExecStart=//p' "$file")
  command=${command//%i/$instance}
  # The folders that systemd makes.
  install -d -o "$(inside id -u gshard)" -g "$(inside id -g gshard)" \
    "$root/var/lib/gshard" "$root/var/lib/gshard-coordinator"
  ip netns exec "$network" chroot "$root" env -i PATH=/usr/bin:/bin \
    "${variables[@]}" \
    setpriv --reuid gshard --regid gshard --init-groups --no-new-privs \
    --bounding-set=-all bash -c "cd /var/lib/gshard && exec $command" \
    > "$scratch/$name.log" 2>&1 &
  members+=($!)
}

network=gshard-packages-$$
start_members() {
  ip netns add "$network"
  ip -n "$network" link set lo up
  unit gshard-coordinator.service
  unit gshard-router.service
  unit gshard-expert-worker@7002.service
  unit gshard-expert-worker@7003.service
}

stop_members() {
  local pid status=0
  for pid in "${members[@]}"; do kill -TERM "$pid" 2> /dev/null || true; done
  for pid in "${members[@]}"; do wait "$pid" || status=$?; done
  members=()
  ip netns del "$network" 2> /dev/null || true
  return "$status"
}

# The client of the packages, as root of that Debian.
client() {
  ip netns exec "$network" chroot "$root" env -i PATH=/usr/bin:/bin \
    LC_ALL=C.UTF-8 GSHARD_COORDINATOR=127.0.0.1:7000 gshard "$@"
}

# A tiny model is trained and served, and translates.
check_system() {
  start_members
  client wait --routers 1 --workers 2 --timeout 60s ||
    { tail -n 3 "$scratch"/gshard-*.log >&2; fail "nobody joined"; return; }
  cp tests/data/names.tsv "$root/var/lib/gshard/"
  cp tests/deploy/tiny_job.textproto "$root/debs/"
  client train /debs/tiny_job.textproto --follow > "$scratch/train.log" 2>&1 ||
    { cat "$scratch/train.log" >&2; fail "training failed"; return; }
  client translate --from de Neuseeland --json | tee "$scratch/translation" |
    grep -q '"hypotheses":\[{' || fail "no translation"
  client describe | grep -q 7003 || fail "describe lacks a worker"
  client checkpoint verify /var/lib/gshard/checkpoints > "$scratch/verify.log" ||
    fail "$(cat "$scratch/verify.log")"
  check_restore
  # A probe with the environment of its unit.
  ip netns exec "$network" chroot "$root" env -i \
    GSHARD_LISTEN=127.0.0.1:7001 GSHARD_COORDINATOR=127.0.0.1:7000 \
    gshard_router --probe=ready || fail "the router is not ready"
  stop_members || { tail -n 3 "$scratch"/gshard-*.log >&2
    fail "a process did not end with 0"; }
}

# The coordinator's folder is lost, and put back from a backup as the guide for
# operators has it: the model is served as before.
check_restore() {
  kill -TERM "${members[0]}"
  wait "${members[0]}" || fail "the coordinator did not end with 0"
  tar -C "$root/var/lib" -czf "$scratch/coordinator.tar.gz" gshard-coordinator
  rm -rf "$root/var/lib/gshard-coordinator"
  tar -C "$root/var/lib" -xzf "$scratch/coordinator.tar.gz"
  unit gshard-coordinator.service
  client wait --routers 1 --workers 2 --model tiny --timeout 60s ||
    { fail "nothing is served after a restore"; return; }
  client translate --from de Neuseeland --json |
    cmp -s - "$scratch/translation" || fail "another translation after a restore"
  members=("${members[@]:1}")
}

# The same in one process, with nothing but the client's own packages needed.
check_up() {
  inside env GSHARD_DIRECTORY=/tmp/up bash -c '
    gshard up --models tiny=/var/lib/gshard/checkpoints > /tmp/up.log &
    gshard wait --model tiny --timeout 60s && gshard translate --from de Neuseeland
    status=$?; kill %1; wait %1; exit $((status + $?))' > "$scratch/up.log" 2>&1 ||
    { cat "$scratch/up.log" "$root/tmp/up.log" >&2; fail "gshard up failed"; }
}

check_shell() {
  inside man -w gshard gshard-train gshard_router gshard_expert_worker \
    > "$scratch/man.log" || fail "no manual in the packages"
  inside bash -c '
    source /usr/share/bash-completion/bash_completion
    _completion_loader gshard_router; complete -p gshard_router' \
    > "$scratch/complete.log" 2>&1 || fail "completion does not load"
}

# An operator's settings outlive an upgrade, and nothing outlives a purge but
# what was trained, and the user whose it is.
check_upgrade_and_purge() {
  echo "GSHARD_LOG_LEVEL=debug" >> "$root/etc/gshard/router.env"
  inside apt-get install -qq --yes --reinstall --no-install-recommends \
    "${debs[@]}" > "$scratch/apt.log" 2>&1 || fail "$(tail "$scratch/apt.log")"
  grep -qx "GSHARD_LOG_LEVEL=debug" "$root/etc/gshard/router.env" ||
    fail "an upgrade changed an operator's settings"
  ln -s /usr/lib/systemd/system/gshard-expert-worker@.service \
    "$root/etc/systemd/system/multi-user.target.wants/gshard-expert-worker@7002.service"

  inside apt-get remove -qq --yes "${packages[@]}" > "$scratch/apt.log" 2>&1 ||
    fail "$(tail "$scratch/apt.log")"
  [[ -e $root/etc/gshard/router.env ]] || fail "removal took the settings along"
  [[ ! -e $root/usr/bin/gshard ]] || fail "removal left the program"
  inside dpkg --purge "${packages[@]}" > "$scratch/apt.log" 2>&1 ||
    fail "$(tail "$scratch/apt.log")"
  [[ -e $root/var/lib/gshard/checkpoints ]] || fail "a purge took checkpoints"
  local left
  left=$(find "$root" -xdev \( -path "$root/proc" -o -path "$root/debs" \
    -o -path "$root/tmp" -o -path "$root/var/lib/gshard" \
    -o -path "$root/var/cache" \) -prune -o -name '*gshard*' -print)
  [[ -z $left ]] || fail "a purge left $left"
}

check_packages() {
  make_packages
  check_control
  enter_root
  install_packages
  check_shell
  check_system
  check_up
  check_upgrade_and_purge
  leave_root
}
