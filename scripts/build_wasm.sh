#!/usr/bin/env bash
# Builds wasm/pkg from the Rust crate in wasm/: the strict and the relaxed-simd module, and native libraries for x86-64-v3,
# x86-64-v4 (with AVX512_BF16 too) and aarch64 (NEON) on Linux, equal byte for byte wherever they are built; and wasm/digests.ts, by which both
# are known, and wasm/SHA256SUMS, which tells from which sources all that was built.
#
#   scripts/build_wasm.sh              builds
#   scripts/build_wasm.sh --check      fails if sources or results are others than wasm/SHA256SUMS says, or if the native
#                                      library for x86-64-v3, built aside, differs in any byte from what is there
#   scripts/build_wasm.sh --check-all  the same of all libraries and modules
#
# Needs rustup and cargo. Modules also need wasm-pack and wasm-bindgen: the versions below are installed into
# $FULLYSHARD_TOOLS (default: .tools in the repository), in some minutes, when they are not on PATH.
set -euo pipefail

readonly WASM_PACK_VERSION=0.15.1
readonly WASM_BINDGEN_VERSION=0.2.130

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
crate="$root/wasm"
tools="${FULLYSHARD_TOOLS:-$root/.tools}"
export PATH="$tools/bin:$PATH"

mode="${1:-build}"
case "$mode" in
  build | --check | --check-all) ;;
  *) echo "usage: scripts/build_wasm.sh [--check | --check-all]" >&2; exit 2 ;;
esac

digest() {
  if command -v sha256sum > /dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}
# Digests of all that is built from, and of all that is built, in the form of sha256sum.
sums() {
  local file
  cd "$root"
  for file in scripts/build_wasm.sh wasm/{Cargo.toml,Cargo.lock,rust-toolchain.toml,digests.ts} \
    $(find wasm/src wasm/pkg -type f | LC_ALL=C sort); do
    printf '%s  %s\n' "$(digest "$file")" "$file"
  done
}
if [ "$mode" != build ]; then
  if ! difference="$(diff "$crate/SHA256SUMS" <(sums))"; then
    echo "build_wasm: these are others than those of the last build; run scripts/build_wasm.sh" >&2
    sed -nE 's/^[<>] [0-9a-f]+  //p' <<< "$difference" | sort -u >&2
    exit 1
  fi
fi

# Is the named program there in the right version?
has() {
  command -v "$1" > /dev/null && [ "$("$1" --version 2> /dev/null)" = "$1 $2" ]
}

for tool in rustup cargo; do
  if ! command -v "$tool" > /dev/null; then
    echo "build_wasm: '$tool' is not on PATH; install Rust from https://rustup.rs" >&2
    exit 1
  fi
done

channel="$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$crate/rust-toolchain.toml")"
readonly X86_TARGET=x86_64-unknown-linux-gnu ARM_TARGET=aarch64-unknown-linux-gnu
installed="$(rustup target list --toolchain "$channel" --installed 2> /dev/null || true)"
for target in wasm32-unknown-unknown "$X86_TARGET" "$ARM_TARGET"; do
  if ! grep -qx "$target" <<< "$installed"; then
    rustup toolchain install "$channel" --profile minimal --target "$target"
  fi
done
export RUSTUP_TOOLCHAIN="$channel"

# Builds a program into $tools without optimising it, in a quarter of the time: what it makes of the crate is the same.
install_tool() {
  CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --root "$tools" "$@"
}

# wasm-pack fixes what it depends on; wasm-bindgen-cli's own lock file names a release that was withdrawn.
# One builds beside the other.
if [ "$mode" != --check ]; then
  { has wasm-pack "$WASM_PACK_VERSION" || install_tool wasm-pack --version "$WASM_PACK_VERSION" --locked; } &
  has wasm-bindgen "$WASM_BINDGEN_VERSION" ||
    install_tool wasm-bindgen-cli --bin wasm-bindgen --version "$WASM_BINDGEN_VERSION"
  wait $!
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# The crate is copied out: nothing but the sources can reach the result, and no tool leaves files in the tree.
mkdir "$work/crate"
cp -R "$crate/Cargo.toml" "$crate/Cargo.lock" "$crate/rust-toolchain.toml" "$crate/src" "$work/crate"

# Runs a command in the crate's copy with the compiler flags of $flags, and no path of this machine in what it makes.
in_crate() {
  local cargo_home="${CARGO_HOME:-$HOME/.cargo}"
  local all=(
    "${flags[@]}"
    --remap-path-prefix "$work/crate=wasm"
    --remap-path-prefix "$cargo_home=cargo"
    --remap-path-prefix "$(rustc --print sysroot)=rust"
  )
  local IFS=$'\x1f'
  (
    unset RUSTFLAGS CARGO_TARGET_DIR
    export CARGO_ENCODED_RUSTFLAGS="${all[*]}"
    IFS=$' \n'
    cd "$work/crate"
    "$@"
  )
}

mkdir "$work/pkg"

# Of what wasm-pack writes, only the module is used: wasm/mod.ts is the glue.
build_module() { # <variant> <target features> [more flags]
  local flags=("${@:3}" -C "target-feature=$2" -C link-arg=--import-memory)
  in_crate wasm-pack --quiet build --mode no-install --target web --release --no-typescript \
    --out-dir "$work/out-$1" -- --locked --target-dir "$work/target-$1"
  cp "$work/out-$1/fullyshard_wasm_bg.wasm" "$work/pkg/$1.wasm"
}

# With the toolchain's own linker, so that the bytes do not depend on the machine's.
build_library() { # <level> <target> <processor> [more flags]
  local flags=(
    "${@:4}"
    -C "target-cpu=$3"
    -C force-unwind-tables=no
    -C relocation-model=pic
    -C linker=rust-lld
    -C linker-flavor=ld.lld
    -C link-arg=-znow
    -C link-arg=--build-id=none
    -C "link-arg=-soname=fullyshard-native-$1.so"
  )
  in_crate cargo build --quiet --release --lib --locked --features native --target "$2" \
    --target-dir "$work/target-$1"
  cp "$work/target-$1/$2/release/libfullyshard_wasm.so" "$work/pkg/native-$1.so"
}

# Each build takes one core, so they go on side by side.
builds=()
begin() { "$@" & builds+=($!); }
begin build_library v3 "$X86_TARGET" x86-64-v3
if [ "$mode" != --check ]; then
  begin build_library v4 "$X86_TARGET" x86-64-v4
  begin build_library v4-bf16 "$X86_TARGET" x86-64-v4 -C target-feature=+avx512bf16
  # Atomics as instructions that every processor has: calls that choose among them want the C library. rustc warns of every such
  # switch.
  begin build_library neon "$ARM_TARGET" generic -C target-feature=-outline-atomics -A warnings
  begin build_module strict +simd128
  # Without the pass that makes a sum of each address in a loop, addresses are offsets from few pointers, which engines take
  # as parts of their loads.
  begin build_module relaxed +simd128,+relaxed-simd -C llvm-args=-disable-lsr
fi
failed=0
for build in "${builds[@]}"; do wait "$build" || failed=1; done
((failed == 0))

# The digest of a file that was built now, or else of the one that is there, which was compared with wasm/SHA256SUMS.
digest_of() {
  if [ -e "$work/pkg/$1" ]; then digest "$work/pkg/$1"; else digest "$crate/pkg/$1"; fi
}

cat > "$work/digests.ts" << END
/**
 * SHA-256 of the modules and the native libraries in \`wasm/pkg\`. Made by \`scripts/build_wasm.sh\`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "$(digest_of strict.wasm)",
  relaxed: "$(digest_of relaxed.wasm)",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "$(digest_of native-v3.so)",
  v4: "$(digest_of native-v4.so)",
  "v4-bf16": "$(digest_of native-v4-bf16.so)",
  neon: "$(digest_of native-neon.so)",
} as const;
END

if [ "$mode" != build ]; then
  for file in digests.ts $(cd "$work" && echo pkg/*); do
    if ! cmp -s "$work/$file" "$crate/$file"; then
      echo "build_wasm: wasm/$file is not what wasm/src builds to; run scripts/build_wasm.sh" >&2
      exit 1
    fi
  done
  echo "wasm/pkg was built from these sources"
else
  mkdir -p "$crate/pkg"
  # New files, not new bytes in files that a running process may have mapped.
  for file in "$work/pkg"/*; do
    rm -f "$crate/pkg/${file##*/}"
    cp "$file" "$crate/pkg/"
  done
  cp "$work/digests.ts" "$crate/"
  sums > "$crate/SHA256SUMS"
  wc -c "$crate/pkg"/*
fi
