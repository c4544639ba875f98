#!/usr/bin/env bash
# Builds wasm/pkg from the Rust crate in wasm/: the strict and the relaxed-simd module, equal byte for byte wherever
# they are built. With --check, builds aside and fails if wasm/pkg differs.
#
# Needs rustup and cargo; wasm-pack and wasm-bindgen of the versions below are installed into $FULLYSHARD_TOOLS
# (default: .tools in the repository) when they are not on PATH.
set -euo pipefail

readonly WASM_PACK_VERSION=0.15.1
readonly WASM_BINDGEN_VERSION=0.2.130

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
crate="$root/wasm"
tools="${FULLYSHARD_TOOLS:-$root/.tools}"
export PATH="$tools/bin:$PATH"

check=false
case "${1:-}" in
  "") ;;
  --check) check=true ;;
  *) echo "usage: scripts/build_wasm.sh [--check]" >&2; exit 2 ;;
esac

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
installed="$(rustup target list --toolchain "$channel" --installed 2> /dev/null || true)"
if ! grep -qx wasm32-unknown-unknown <<< "$installed"; then
  rustup toolchain install "$channel" --profile minimal --target wasm32-unknown-unknown
fi
export RUSTUP_TOOLCHAIN="$channel"

# wasm-pack fixes what it depends on; wasm-bindgen-cli's own lock file names a release that was withdrawn.
has wasm-pack "$WASM_PACK_VERSION" ||
  cargo install wasm-pack --version "$WASM_PACK_VERSION" --locked --root "$tools"
has wasm-bindgen "$WASM_BINDGEN_VERSION" ||
  cargo install wasm-bindgen-cli --version "$WASM_BINDGEN_VERSION" --root "$tools"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# The crate is copied out: nothing but the sources can reach the result, and no tool leaves files in the tree.
mkdir "$work/crate"
cp -R "$crate/Cargo.toml" "$crate/Cargo.lock" "$crate/rust-toolchain.toml" "$crate/src" "$work/crate"

build() { # <variant> <target features>
  local cargo_home="${CARGO_HOME:-$HOME/.cargo}"
  local flags=(
    -C "target-feature=$2"
    -C link-arg=--import-memory
    --remap-path-prefix "$work/crate=wasm"
    --remap-path-prefix "$cargo_home=cargo"
    --remap-path-prefix "$(rustc --print sysroot)=rust"
  )
  local IFS=$'\x1f'
  (
    unset RUSTFLAGS
    export CARGO_ENCODED_RUSTFLAGS="${flags[*]}"
    IFS=$' \n'
    cd "$work/crate"
    wasm-pack --quiet build --mode no-install --target web --release --no-typescript \
      --out-dir "$work/out-$1" -- --locked --target-dir "$work/target"
  )
}
build strict +simd128
build relaxed +simd128,+relaxed-simd

# Of what wasm-pack writes, only the modules are used: wasm/mod.ts is the glue.
mkdir "$work/pkg"
for variant in strict relaxed; do
  cp "$work/out-$variant/fullyshard_wasm_bg.wasm" "$work/pkg/$variant.wasm"
done

if $check; then
  for variant in strict relaxed; do
    if ! cmp -s "$work/pkg/$variant.wasm" "$crate/pkg/$variant.wasm"; then
      echo "build_wasm: wasm/pkg/$variant.wasm is not what wasm/src builds to; run scripts/build_wasm.sh" >&2
      exit 1
    fi
  done
  echo "wasm/pkg is up to date"
else
  mkdir -p "$crate/pkg"
  cp "$work/pkg"/*.wasm "$crate/pkg/"
  wc -c "$crate/pkg"/*.wasm
fi
