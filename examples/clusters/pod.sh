#!/bin/bash
# A pod of jobset.yaml: starts this host's ranks, which go on with the hosts that are left when a pod is lost, and with it once it is back.
set -euo pipefail
: "${HOSTS:?number of pods}" "${RANKS_PER_HOST:?ranks of each}" "${JOB_COMPLETION_INDEX:?Kubernetes sets it}"
name=${JOBSET_NAME:-fullyshard}

endpoints=""
for index in $(seq 0 $((HOSTS - 1))); do endpoints="$endpoints,$name-ranks-0-$index.$name:29500"; done
exec "${FULLYSHARD:-node_modules/.bin/fullyshard}" train --nnodes "1:$HOSTS" --node-rank "$JOB_COMPLETION_INDEX" \
  --rdzv-endpoint "${endpoints#,}" --nproc-per-node "$RANKS_PER_HOST" --max-restarts 10 --redundancy 1 \
  --out "${OUT:-runs/cluster}" --resume auto "$@"
