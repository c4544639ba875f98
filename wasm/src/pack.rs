//! Rows or columns of matrices interleaved into panels, as tiles (`tile.rs`) read them.
use crate::dtype::Element;
use crate::factors::{words, Factors, Widened};
use crate::simd::{prefetch, Quad, LANES};
use crate::tile::MR;
#[cfg(target_arch = "wasm32")]
use crate::tile::SPREAD;
#[cfg(target_arch = "wasm32")]
use crate::tile_wasm as wasm;

/// Neighbors that are packed together, as far as whole panels go: so that each line of the source is fetched once.
const TOGETHER: usize = 64;
/// Steps between a line's prefetch and its use, where each step has lines of its own.
const AHEAD: usize = 8;
/// Elements of the longest line that is fetched at once.
pub const LINE: usize = 16;

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
