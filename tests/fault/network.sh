# shellcheck shell=bash
# Sourced by exactness.sh: a network of namespaces that can be cut apart.
# Needs root with CAP_NET_ADMIN and CAP_SYS_ADMIN.
#
# All of it is in a namespace of its own, named after this process: a bridge
# `whole`, to which every process's namespace is linked, and a bridge `part`,
# to which those are moved that are cut off. Nothing says so to those that talk
# to them: packets go nowhere, as behind a switch that died.

network=gshard-$$
declare -A network_hosts=()

network_works() {
  local probe=$network-probe works=1
  [[ $(id -u) -eq 0 ]] && command -v ip > /dev/null || return 1
  ip netns add "$probe" 2> /dev/null || return 1
  ip -n "$probe" link add name whole type bridge 2> /dev/null &&
    ip -n "$probe" link add name veth0 type veth peer name veth1 2> /dev/null &&
    ip netns exec "$probe" true 2> /dev/null && works=0
  ip netns del "$probe"
  return $works
}

# What drivers have left that were killed: their processes and namespaces.
network_sweep() {
  local namespace pid
  for namespace in $(ip netns list | grep -o '^gshard-[0-9]*[a-z0-9-]*'); do
    pid=${namespace#gshard-}
    [[ ! -d /proc/${pid%%-*} ]] || continue
    for pid in $(ip netns pids "$namespace"); do kill -KILL "$pid"; done
    ip netns del "$namespace"
  done
}

network_begin() {
  network_sweep
  ip netns add "$network"
  local bridge
  for bridge in whole part; do
    ip -n "$network" link add name "$bridge" type bridge
    ip -n "$network" link set "$bridge" up
  done
}

# HOST: makes it, unless it is there.
network_add() {
  [[ -z ${network_hosts[$1]-} ]] || return 0
  network_hosts[$1]=10.77.0.$((${#network_hosts[@]} + 1))
  local namespace=$network-$1
  ip netns add "$namespace"
  ip -n "$network" link add name "$1" type veth peer name eth0 netns "$namespace"
  ip -n "$network" link set "$1" master whole up
  ip -n "$namespace" address add "${network_hosts[$1]}/24" dev eth0
  ip -n "$namespace" link set lo up
  ip -n "$namespace" link set eth0 up
}

# HOST...: these see each other, and none of the others.
network_cut() {
  local host
  for host in "$@"; do ip -n "$network" link set "$host" master part; done
}

network_heal() {
  local host
  for host in "$@"; do ip -n "$network" link set "$host" master whole; done
}

# HOST HOST: only these two lose sight of each other, by a hardware address that
# nobody has.
network_cut_pair() {
  local nobody=02:00:00:00:00:01
  ip -n "$network-$1" neighbour replace "${network_hosts[$2]}" \
    lladdr $nobody dev eth0 nud permanent
  ip -n "$network-$2" neighbour replace "${network_hosts[$1]}" \
    lladdr $nobody dev eth0 nud permanent
}

network_heal_pair() {
  ip -n "$network-$1" neighbour del "${network_hosts[$2]}" dev eth0
  ip -n "$network-$2" neighbour del "${network_hosts[$1]}" dev eth0
}

network_end() {
  local host
  for host in "${!network_hosts[@]}"; do
    ip netns del "$network-$host" 2> /dev/null || true
  done
  ip netns del "$network" 2> /dev/null || true
  network_hosts=()
}
