#!/bin/bash
# A pod of jobset.yaml: the first one starts the ranks on all, the others serve ssh until the first one is done.
set -euo pipefail
: "${HOSTS:?number of pods}" "${RANKS_PER_HOST:?ranks of each}" "${JOB_COMPLETION_INDEX:?Kubernetes sets it}"
name=${JOBSET_NAME:-fullyshard}
host() { echo "$name-ranks-0-$1.$name"; }

if [ "$JOB_COMPLETION_INDEX" != 0 ]; then
  "${SSHD:-/usr/sbin/sshd}"
  # The name of a pod that has ended is no longer known.
  until getent hosts "$(host 0)" >/dev/null; do sleep 1; done
  while getent hosts "$(host 0)" >/dev/null; do sleep 5; done
  exit 0
fi

list=""
for index in $(seq 0 $((HOSTS - 1))); do
  until getent hosts "$(host "$index")" >/dev/null; do sleep 1; done
  list="$list,$(host "$index"):$RANKS_PER_HOST"
done
exec mpirun --allow-run-as-root --host "${list#,}" --map-by "ppr:$RANKS_PER_HOST:node" \
  -n $((HOSTS * RANKS_PER_HOST)) bun examples/clusters/train.ts "${OUT:-runs/cluster}"
