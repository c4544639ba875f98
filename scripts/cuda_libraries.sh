#!/usr/bin/env bash
# Fetches the CUDA runtime, NVRTC and NCCL into .cuda/, for tests that need the real libraries and no GPU. Their wheels lie
# there as in a Python environment, so that they are found as an environment's are. About 250 MB are downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."

wheels=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvrtc==13.0.88 nvidia-nccl-cu13==2.28.9)

python=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
place=.cuda/lib/$python/site-packages
rm -rf .cuda
mkdir -p "$place"
trap 'status=$?; ((status == 0)) || rm -rf .cuda; exit $status' EXIT
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-warn-conflicts --no-deps \
  --no-compile --only-binary=:all: --target "$place" "${wheels[@]}"
# Headers, static libraries, bitcode and second builds of NVRTC are of no use here.
find "$place/nvidia" -type f \( ! -name '*.so*' -o -name '*.alt.so*' \) -delete
find "$place/nvidia" -type d -empty -delete
du -sh .cuda
