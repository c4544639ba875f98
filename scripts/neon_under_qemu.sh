#!/usr/bin/env bash
# Runs what tests the kernels for aarch64 on a machine of another kind, under qemu: the crate's own tests, and with Bun and Deno
# for aarch64 the suites that hold native kernels to their contract and to the bits of strict WASM. It takes many minutes, says
# nothing about speed, and is no part of the gate.
#
# Needs qemu-aarch64-static, and a compiler and C library for aarch64; on Debian: apt-get install qemu-user-static
# gcc-aarch64-linux-gnu libc6-dev-arm64-cross libstdc++6-arm64-cross. The runtimes come from npm, in the versions of package.json;
# FULLYSHARD_ARM64_BUN and FULLYSHARD_ARM64_DENO name others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TARGET=aarch64-unknown-linux-gnu
readonly SYSROOT="${FULLYSHARD_ARM64_SYSROOT:-/usr/aarch64-linux-gnu}"
readonly SUITES=(tests/device/native_library_test.ts tests/device/same_bits_test.ts tests/device/cpu_conformance_test.ts)

for tool in qemu-aarch64-static aarch64-linux-gnu-gcc rustup npm; do
  if ! command -v "$tool" > /dev/null; then
    echo "neon_under_qemu: '$tool' is not on PATH; the head of this script says what is needed" >&2
    exit 1
  fi
done
if [[ ! -e $SYSROOT/lib/ld-linux-aarch64.so.1 ]]; then
  echo "neon_under_qemu: $SYSROOT has no C library for aarch64; FULLYSHARD_ARM64_SYSROOT names another place" >&2
  exit 1
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# What programs see under qemu: the C library for aarch64, and a processor of the least that such a Linux has.
mkdir -p "$work/root/proc"
ln -s "$SYSROOT/lib" "$work/root/lib"
printf 'processor\t: 0\nFeatures\t: fp asimd\n' > "$work/root/proc/cpuinfo"
export QEMU_LD_PREFIX="$work/root"

echo "=== the crate's tests"
channel="$(sed -n 's/^channel = "\(.*\)"$/\1/p' wasm/rust-toolchain.toml)"
rustup target add --toolchain "$channel" "$TARGET"
(
  cd wasm
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static
  cargo test --locked --target "$TARGET"
)

# The program of a package of npm for aarch64, fetched; nothing where there is none of that version.
fetch() { # <package> <version> <program's path in it>
  mkdir -p "$work/$3"
  (cd "$work/$3" && npm pack --silent "$1@$2" > /dev/null && tar xzf ./*.tgz) || return 0
  echo "$work/$3/package/$3"
}
version_of() { node -p "require('./package.json').devDependencies?.['$1'] ?? require('./package.json').dependencies['$1']"; }

bun="${FULLYSHARD_ARM64_BUN:-$(fetch @oven/bun-linux-aarch64 "$(version_of bun)" bin/bun)}"
deno="${FULLYSHARD_ARM64_DENO:-$(fetch @deno/linux-arm64-glibc "$(version_of deno)" deno)}"

# Of long matrices every case, as there is no other runtime that would run the rest.
export FULLYSHARD_TEST_ALL=1
status=0
for suite in "${SUITES[@]}"; do
  if [[ -n $bun ]]; then
    echo "=== $suite, Bun $(qemu-aarch64-static "$bun" --version)"
    qemu-aarch64-static "$bun" test --timeout 3600000 "./$suite" || status=1
  fi
  if [[ -n $deno ]]; then
    echo "=== $suite, $(qemu-aarch64-static "$deno" --version | head -1)"
    qemu-aarch64-static "$deno" test -A --no-check "$suite" || status=1
  fi
done
[[ -n $bun ]] || echo "neon_under_qemu: npm has no Bun for aarch64 in this version; FULLYSHARD_ARM64_BUN names one"
[[ -n $deno ]] || echo "neon_under_qemu: npm has no Deno for aarch64 in this version; FULLYSHARD_ARM64_DENO names one"
exit "$status"
