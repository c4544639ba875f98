#!/bin/bash
# in_host.sh N command…: the command on "host" N, a network namespace with its own name, processes and shared memory, so that
# nothing but its network joins it to other hosts. Hosts find each other by name (host1, host2, …), as launchers know their own host.
number=$1; shift
exec ip netns exec "fullyshard$number" unshare --uts --ipc --mount --pid --fork --kill-child sh -c \
  "mount -t tmpfs tmpfs /dev/shm && for n in 1 2 3 4; do echo 10.77.0.\$n host\$n; done >/dev/shm/hosts && mount --bind /dev/shm/hosts /etc/hosts && mount -t proc proc /proc && hostname host$number && export TMPDIR=/dev/shm && $*"
