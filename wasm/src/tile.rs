//! The register tile that matrix products and attention are made of, over packed panels (`pack.rs`).
//!
//! A panel holds `W` rows (or columns) of a matrix interleaved, step by step along the summed dim, so that the tile
//! reads both operands front to back. The sum of each output element runs over that dim in order, in one chain:
//! its bits do not depend on the sizes of the output nor on its place in it.
use crate::ahead::{Fetch, Nothing};
use crate::dtype::{load_part, store_part};
use crate::factors::{MultiplyAdd, Widened};
use crate::simd::{F32s, LANES};
#[cfg(target_arch = "wasm32")]
use crate::tile_wasm as wasm;

/// Rows of a tile: width of the left operand's panels. With the right operand's two vectors and one of the left, its sums fill
/// the registers; of NEON's 32 they take half, as much as hides how long a fused product takes in four units at once.
pub const MR: usize = match LANES {
    4 if cfg!(target_arch = "aarch64") => 8,
    4 => 4,
    8 => 6,
    _ => 12,
};
/// Steps of the summed dim between which nothing is counted, compared nor fetched; in WASM, whose compilers keep less in
/// registers, one.
pub const UNROLLED: usize = if LANES > 4 || cfg!(target_arch = "aarch64") { 4 } else { 1 };
/// Vectors in a row of a tile.
pub const VECTORS: usize = 2;
/// True if a part of a tile's rows, or of its columns, has sums enough to hide the time that a fused product
/// takes; such a part is computed alone.
const TALL: bool = MR >= 12;
/// Rows of such a part.
const THIRD: usize = MR / 3;
/// Rows by multiples of which a block of rows may be cut: a part of a tile with so few is computed alone, where that pays.
pub const GRAIN: usize = if TALL { THIRD } else { MR };
/// Columns of a tile: width of the right operand's panels.
pub const NR: usize = VECTORS * LANES;
/// The most words that a value of a left panel takes.
pub const SPREAD: usize = if cfg!(target_arch = "wasm32") { LANES } else { 1 };

/// Where a left operand lies: element (row, step) is `data[row * row + step * step]`; one of the two is 1.
#[derive(Clone, Copy)]
pub struct Left {
    pub data: *const f32,
    pub row: usize,
    pub step: usize,
}

impl Left {
    /// A packed panel.
    #[inline(always)]
    pub fn panel(data: *const f32) -> Left {
        Left { data, row: 1, step: MR }
    }

    /// The operand as [`tile_in_place`] takes `depth` steps of it; `space` is for [`SPREAD`] panels of them, or for nothing
    /// where that is as it lies.
    #[inline(always)]
    pub unsafe fn prepared(self, _depth: usize, _space: *mut f32) -> Left {
        #[cfg(target_arch = "wasm32")]
        return wasm::prepared(_space, self, _depth);
        #[cfg(not(target_arch = "wasm32"))]
        self
    }
}

/// Adds the product of a left operand and a right panel over `depth` words, and fetches lines meanwhile.
#[inline(always)]
unsafe fn add_product<M: MultiplyAdd, const R: usize, const N: usize>(
    sums: &mut [[F32s; N]; R],
    depth: usize,
    a: Left,
    b: *const f32,
    ahead: &mut impl Fetch,
) {
    #[cfg(target_arch = "wasm32")]
    if wasm::spreads() {
        return wasm::add_spread(sums, depth, a.data, b);
    } else if a.row == 1 {
        return wasm::add_neighbors(sums, depth, a, b);
    }
    let (mut left, mut b) = (a.data, b);
    for calls in 0..depth / UNROLLED {
        ahead.fetch(calls);
        #[cfg(target_arch = "aarch64")]
        add_steps(sums, Left { data: left, ..a }, b);
        #[cfg(not(target_arch = "aarch64"))]
        for s in 0..UNROLLED {
            add_step::<M, R, N>(sums, left.add(s * a.step), a.row, b.add(s * NR));
        }
        left = left.add(UNROLLED * a.step);
        b = b.add(UNROLLED * NR);
    }
    for _ in 0..depth % UNROLLED {
        add_step::<M, R, N>(sums, left, a.row, b);
        left = left.add(a.step);
        b = b.add(NR);
    }
}

/// `UNROLLED` steps of the summed dim where a product takes its factor from one lane of a register: the left operand is loaded
/// by four neighbors, along its rows or along its steps.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn add_steps<const R: usize, const N: usize>(sums: &mut [[F32s; N]; R], a: Left, b: *const f32) {
    const _: () = assert!(UNROLLED == 4 && MR.is_multiple_of(4));
    let mut values = [[F32s::zero(); MR]; UNROLLED];
    if a.row == 1 {
        for (s, step) in values.iter_mut().enumerate() {
            for i in (0..MR).step_by(4) {
                step[i..i + 4].copy_from_slice(&F32s::load_splats(a.data.add(s * a.step + i)));
            }
        }
    } else {
        for i in 0..MR {
            let along = F32s::load_splats(a.data.add(i * a.row));
            for s in 0..UNROLLED {
                values[s][i] = along[s];
            }
        }
    }
    for s in 0..UNROLLED {
        let right: [F32s; N] = core::array::from_fn(|j| F32s::load(b.add(s * NR + LANES * j)));
        for i in 0..R {
            for j in 0..N {
                sums[i][j] = values[s][i].madd(right[j], sums[i][j]);
            }
        }
    }
}

/// One word of each operand.
#[inline(always)]
unsafe fn add_step<M: MultiplyAdd, const R: usize, const N: usize>(
    sums: &mut [[F32s; N]; R],
    left: *const f32,
    row: usize,
    b: *const f32,
) {
    let right: [F32s; N] = core::array::from_fn(|j| F32s::load(b.add(LANES * j)));
    for i in 0..R {
        let value = F32s::load_splat(left.add(i * row));
        for j in 0..N {
            sums[i][j] = M::multiply_add(value, right[j], sums[i][j]);
        }
    }
}

/// `c = alpha * product + beta * c` for a whole tile of panels that are `depth` words deep; with `beta` 0, `c` is not read.
#[inline(never)]
pub unsafe fn tile<M: MultiplyAdd>(
    depth: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    beta: f32,
    ahead: &mut impl Fetch,
) {
    let mut sums = [[F32s::zero(); VECTORS]; MR];
    add_product::<M, MR, VECTORS>(&mut sums, depth, Left::panel(a), b, ahead);
    let (scale, keep) = (F32s::splat(alpha), F32s::splat(beta));
    for i in 0..MR {
        for j in 0..VECTORS {
            let p = c.add(i * ldc + LANES * j);
            let new = scale * sums[i][j];
            let value = if beta == 0.0 { new } else { keep * F32s::load(p) + new };
            value.store(p);
        }
    }
}

/// `c += product`, or `c = product` unless it is kept, of a [prepared](Left::prepared) left operand in place: the sums begin with what is in `c`.
#[inline(always)]
pub unsafe fn tile_in_place(depth: usize, a: Left, b: *const f32, c: *mut f32, ldc: usize, keep: bool) {
    let mut sums = [[F32s::zero(); VECTORS]; MR];
    if keep {
        for i in 0..MR {
            for j in 0..VECTORS {
                sums[i][j] = F32s::load(c.add(i * ldc + LANES * j));
            }
        }
    }
    add_product::<Widened, MR, VECTORS>(&mut sums, depth, a, b, &mut Nothing);
    for i in 0..MR {
        for j in 0..VECTORS {
            sums[i][j].store(c.add(i * ldc + LANES * j));
        }
    }
}

/// The first `rows` by `cols` of a tile, as [`tile`].
#[inline(never)]
pub unsafe fn tile_part<M: MultiplyAdd>(
    depth: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    beta: f32,
    rows: usize,
    cols: usize,
    ahead: &mut impl Fetch,
) {
    if TALL && cols <= LANES {
        part::<M, MR, 1>(depth, a, b, c, ldc, alpha, beta, rows, cols, ahead)
    } else if TALL && rows <= THIRD {
        part::<M, THIRD, VECTORS>(depth, a, b, c, ldc, alpha, beta, rows, cols, ahead)
    } else if TALL && rows <= 2 * THIRD {
        part::<M, { 2 * THIRD }, VECTORS>(depth, a, b, c, ldc, alpha, beta, rows, cols, ahead)
    } else {
        part::<M, MR, VECTORS>(depth, a, b, c, ldc, alpha, beta, rows, cols, ahead)
    }
}

/// The same of `R` rows of a panel, by the first `N` vectors of the other.
#[inline(always)]
unsafe fn part<M: MultiplyAdd, const R: usize, const N: usize>(
    depth: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    beta: f32,
    rows: usize,
    cols: usize,
    ahead: &mut impl Fetch,
) {
    let mut sums = [[F32s::zero(); N]; R];
    add_product::<M, R, N>(&mut sums, depth, Left::panel(a), b, ahead);
    let (scale, keep) = (F32s::splat(alpha), F32s::splat(beta));
    for i in 0..rows {
        for j in 0..N.min(cols.div_ceil(LANES)) {
            let (p, count) = (c.add(i * ldc + LANES * j), cols - LANES * j);
            let new = scale * sums[i][j];
            let value = if beta == 0.0 { new } else { keep * load_part(p as *const f32, count) + new };
            store_part(p, value, count);
        }
    }
}
