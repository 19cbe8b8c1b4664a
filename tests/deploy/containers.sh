# shellcheck shell=bash
# Sourced by images.sh: containers without a registry. It needs a folder $scratch.

# What podman and buildah need where cgroups are of the first version or mixed
# and rlimits may not be raised. They are given $scratch/containers.conf.
configure_containers() {
  export CONTAINERS_CONF=${scratch:?}/containers.conf
  cat > "$CONTAINERS_CONF" << 'TEXT'
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
TEXT
}

# Makes docker.io/library/debian:bookworm-slim be there: pulls it, or makes it
# from Debian's archive where no registry can be reached.
make_base() {
  local base=docker.io/library/debian:bookworm-slim root=$scratch/base
  podman image exists $base && return
  timeout 60 podman pull --quiet $base 2> /dev/null && return
  debootstrap --variant=minbase bookworm "$root" > "$scratch/debootstrap.log" ||
    { tail "$scratch/debootstrap.log" >&2; fail "there is no base image"; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  tar -C "$root" -c . | podman import --quiet --change 'CMD ["bash"]' - $base
  rm -rf "$root"
}
