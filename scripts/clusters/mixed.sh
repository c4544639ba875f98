#!/bin/bash
# mixed.sh BUN DENO script…: the script under Bun on ranks of even numbers, and under Deno on the others.
bun=$1; deno=$2; shift 2
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK:?no launcher started this process}}}
if ((rank % 2)); then exec "$deno" run -A --quiet "$@"; fi
exec "$bun" run "$@"
