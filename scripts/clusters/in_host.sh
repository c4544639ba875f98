#!/bin/bash
# in_host.sh N command…: the command on "host" N, a network namespace with its own name, processes and shared memory, so that
# nothing but its network joins it to other hosts.
number=$1; shift
exec ip netns exec "fullyshard$number" unshare --uts --ipc --mount --pid --fork --kill-child sh -c \
  "mount -t tmpfs tmpfs /dev/shm && mount -t proc proc /proc && hostname host$number && export TMPDIR=/dev/shm && $*"
