//! Packed panels and the register tile that matrix products and attention are made of.
//!
//! A panel holds `W` rows (or columns) of a matrix interleaved, step by step along the summed dim, so that the tile
//! reads both operands front to back. The sum of each output element runs over that dim in order, in one chain:
//! its bits do not depend on the sizes of the output nor on its place in it.
use crate::dtype::{load_part, store_part, Element};
use crate::factors::{words, Factors, MultiplyAdd, Widened};
use crate::simd::{prefetch, F32s, Quad, LANES};
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
/// Steps of the summed dim between which nothing is counted nor compared; in WASM, whose compilers keep less in registers, one.
const UNROLLED: usize = if LANES > 4 || cfg!(target_arch = "aarch64") { 4 } else { 1 };
/// Vectors in a row of a tile.
pub const VECTORS: usize = 2;
/// Whether a tile of few columns is computed by half, as its sums still hide how long a fused product takes.
const HALVED: bool = MR >= 12;
/// Columns of a tile: width of the right operand's panels.
pub const NR: usize = VECTORS * LANES;
/// The most words that a value of a left panel takes.
pub const SPREAD: usize = if cfg!(target_arch = "wasm32") { LANES } else { 1 };

/// Neighbors that are packed together, as far as whole panels go: so that each line of the source is fetched once.
const TOGETHER: usize = 64;
/// Steps between a line's prefetch and its use, where each step has lines of its own.
const AHEAD: usize = 8;
/// Elements of the longest line that is fetched at once.
const LINE: usize = 16;

/// Words that a value of a left panel takes: some engines of WASM are faster where it fills a vector (`tile_wasm.rs`).
#[inline(always)]
pub fn spread() -> usize {
    #[cfg(target_arch = "wasm32")]
    if wasm::spreads() {
        return SPREAD;
    }
    1
}

/// Packs rows of a left operand into panels of `MR` as [`tile`] takes them; `dst` holds [`spread`] times as many words.
pub unsafe fn pack_left<T: Element>(
    dst: *mut f32,
    src: *const T,
    row_stride: usize,
    step_stride: usize,
    count: usize,
    depth: usize,
) {
    let values = count.next_multiple_of(MR) * words::<T, T::Factors>(depth);
    let packed = dst.add(values * (spread() - 1));
    pack::<T, T::Factors, MR>(packed, src, row_stride, step_stride, count, depth);
    #[cfg(target_arch = "wasm32")]
    if wasm::spreads() {
        wasm::spread_panel(dst, packed, values);
    }
}

/// Packs `count` rows of length `depth` into panels of `W`, missing rows as zeros; its words hold what `F` multiplies.
/// Element (row, step) of the source is `src[row * row_stride + step * step_stride]`; one of the strides is 1.
/// `dst` holds `count` rounded up to `W`, times [`words`] of `depth`.
pub unsafe fn pack<T: Element, F: Factors<T>, const W: usize>(
    dst: *mut f32,
    src: *const T,
    row_stride: usize,
    step_stride: usize,
    count: usize,
    depth: usize,
) {
    let (whole, words) = (count / W * W, words::<T, F>(depth));
    if row_stride == 1 {
        let together = TOGETHER / W * W;
        for row in (0..whole).step_by(together) {
            let width = together.min(whole - row);
            pack_neighbors::<T, F, W>(dst.add(row * words), src.add(row), step_stride, width, depth);
        }
    } else {
        for row in (0..whole).step_by(W) {
            pack_rows::<T, F, W>(dst.add(row * words), src.add(row * row_stride), row_stride, step_stride, W, depth);
        }
    }
    if whole < count {
        let (to, from) = (dst.add(whole * words), src.add(whole * row_stride));
        pack_part::<T, F, W>(to, from, row_stride, step_stride, count - whole, depth);
    }
}

/// Whole panels, `width` rows in all, whose rows lie next to each other at each step.
#[inline(always)]
unsafe fn pack_neighbors<T: Element, F: Factors<T>, const W: usize>(
    panels: *mut f32,
    src: *const T,
    step_stride: usize,
    width: usize,
    depth: usize,
) {
    let (words, whole) = (words::<T, F>(depth), depth / F::STEPS);
    for s in 0..whole {
        let from = src.add(s * F::STEPS * step_stride);
        for i in (0..width).step_by(LINE) {
            for step in 0..F::STEPS {
                prefetch(src.wrapping_add(((s + AHEAD) * F::STEPS + step) * step_stride + i));
            }
        }
        for row in (0..width).step_by(W) {
            copy_row::<T, F, W>(panels.add(row * words + s * W), from.add(row), step_stride);
        }
    }
    // Steps that fill no word.
    if whole < words {
        for row in (0..width).step_by(W) {
            copy_row::<T, Widened, W>(
                panels.add(row * words + whole * W),
                src.add(whole * F::STEPS * step_stride + row),
                0,
            );
        }
    }
}

/// One word of `W` neighbors.
#[inline(always)]
unsafe fn copy_row<T: Element, F: Factors<T>, const W: usize>(to: *mut f32, from: *const T, step_stride: usize) {
    let mut i = 0;
    while i + LANES <= W {
        F::neighbors(from.add(i), step_stride).store(to.add(i));
        i += LANES;
    }
    while i < W {
        // The last four may have been copied in part.
        let at = i.min(W - 4);
        F::four_neighbors(from.add(at), step_stride).store(to.add(at));
        i += 4;
    }
}

/// A panel whose rows run along their steps, of which `rows` are there; the next panel's are fetched meanwhile.
#[inline(always)]
unsafe fn pack_rows<T: Element, F: Factors<T>, const W: usize>(
    panel: *mut f32,
    src: *const T,
    row_stride: usize,
    step_stride: usize,
    rows: usize,
    depth: usize,
) {
    let whole = if step_stride == 1 { depth / F::STEPS / 4 * 4 } else { 0 };
    for s in (0..whole).step_by(4) {
        let (from, to) = (src.add(s * F::STEPS), panel.add(s * W));
        if s % LINE == 0 {
            for r in W..2 * W {
                prefetch(from.wrapping_add(r * row_stride));
            }
        }
        for g in (0..W).step_by(4) {
            let row = |r: usize| {
                if g + r < W && g + r < rows {
                    F::four_along(from.add((g + r) * row_stride))
                } else {
                    Quad::zero()
                }
            };
            let columns = Quad::transpose([row(0), row(1), row(2), row(3)]);
            for (i, column) in columns.into_iter().enumerate() {
                if g + 4 <= W {
                    column.store(to.add(i * W + g));
                } else {
                    column.store_half(to.add(i * W + g));
                }
            }
        }
    }
    for s in whole..words::<T, F>(depth) {
        let (step, steps) = (s * F::STEPS, F::STEPS.min(depth - s * F::STEPS));
        for r in 0..W {
            let from = src.wrapping_add(r * row_stride + step * step_stride);
            *panel.add(s * W + r) = if r < rows { F::word(from, step_stride, steps) } else { 0.0 };
        }
    }
}

/// A panel of fewer rows than `W`. Not inlined, as it is the same again but for that.
#[inline(never)]
unsafe fn pack_part<T: Element, F: Factors<T>, const W: usize>(
    panel: *mut f32,
    src: *const T,
    row_stride: usize,
    step_stride: usize,
    rows: usize,
    depth: usize,
) {
    pack_rows::<T, F, W>(panel, src, row_stride, step_stride, rows, depth);
}

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

/// Adds the product of a left operand and a right panel over `depth` words.
#[inline(always)]
unsafe fn add_product<M: MultiplyAdd, const N: usize>(
    sums: &mut [[F32s; N]; MR],
    depth: usize,
    a: Left,
    b: *const f32,
) {
    #[cfg(target_arch = "wasm32")]
    if wasm::spreads() {
        return wasm::add_spread(sums, depth, a.data, b);
    } else if a.row == 1 {
        return wasm::add_neighbors(sums, depth, a, b);
    }
    let (mut left, mut b) = (a.data, b);
    for _ in 0..depth / UNROLLED {
        #[cfg(target_arch = "aarch64")]
        add_steps(sums, Left { data: left, ..a }, b);
        #[cfg(not(target_arch = "aarch64"))]
        for s in 0..UNROLLED {
            add_step::<M, N>(sums, left.add(s * a.step), a.row, b.add(s * NR));
        }
        left = left.add(UNROLLED * a.step);
        b = b.add(UNROLLED * NR);
    }
    for _ in 0..depth % UNROLLED {
        add_step::<M, N>(sums, left, a.row, b);
        left = left.add(a.step);
        b = b.add(NR);
    }
}

/// `UNROLLED` steps of the summed dim where a product takes its factor from one lane of a register: the left operand is loaded
/// by four neighbors, along its rows or along its steps.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn add_steps<const N: usize>(sums: &mut [[F32s; N]; MR], a: Left, b: *const f32) {
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
        for i in 0..MR {
            for j in 0..N {
                sums[i][j] = values[s][i].madd(right[j], sums[i][j]);
            }
        }
    }
}

/// One word of each operand.
#[inline(always)]
unsafe fn add_step<M: MultiplyAdd, const N: usize>(
    sums: &mut [[F32s; N]; MR],
    left: *const f32,
    row: usize,
    b: *const f32,
) {
    let right: [F32s; N] = core::array::from_fn(|j| F32s::load(b.add(LANES * j)));
    for i in 0..MR {
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
) {
    let mut sums = [[F32s::zero(); VECTORS]; MR];
    add_product::<M, VECTORS>(&mut sums, depth, Left::panel(a), b);
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

/// Fetches a tile's place in the output, which is read or written once its product is there.
#[inline(always)]
pub fn fetch_output(c: *const f32, ldc: usize) {
    for i in 0..MR {
        for j in (0..NR).step_by(LINE) {
            prefetch(c.wrapping_add(i * ldc + j));
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
    add_product::<Widened, VECTORS>(&mut sums, depth, a, b);
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
) {
    if HALVED && cols <= LANES {
        return part::<M, 1>(depth, a, b, c, ldc, alpha, beta, rows, cols);
    }
    part::<M, VECTORS>(depth, a, b, c, ldc, alpha, beta, rows, cols);
}

/// The same of the first `N` vectors of a tile's rows.
#[inline(always)]
unsafe fn part<M: MultiplyAdd, const N: usize>(
    depth: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    beta: f32,
    rows: usize,
    cols: usize,
) {
    let mut sums = [[F32s::zero(); N]; MR];
    add_product::<M, N>(&mut sums, depth, Left::panel(a), b);
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
