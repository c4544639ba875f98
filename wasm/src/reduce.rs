//! Reductions of the middle of [outer, n, inner], argmax, and sums along rows.
//!
//! Sums are f64. The order of additions depends on `n` and on whether `inner` is 1, never on the other sizes.
use crate::dtype::{load_part, store_part, Element};
use crate::elementwise::{largest, smallest, sum_f64};
use crate::simd::{F32s, F64s, LANES};
use crate::workspace::Workspace;
use core::ops::Range;

const SUM: u32 = 0;
const MEAN: u32 = 1;
const MAX: u32 = 2;

/// Columns that are summed together, so that each row gives a few cache lines at a time.
const BLOCK: usize = 64;

/// `dst` [outer, inner] from `src` [outer, n, inner].
pub unsafe fn reduce<T: Element>(
    space: Workspace,
    op: u32,
    outer: usize,
    n: usize,
    inner: usize,
    dst: *mut T,
    src: *const T,
) {
    if inner == 1 {
        return space.split(outer, n, |part, _| {
            for o in part {
                let row = src.add(o * n);
                let value = match op {
                    SUM => sum_f64(n, |i, count| load_part(row.add(i), count)) as f32,
                    MEAN => (sum_f64(n, |i, count| load_part(row.add(i), count)) / n as f64) as f32,
                    MAX => largest(row, n),
                    _ => smallest(row, n),
                };
                T::store(dst.add(o), value);
            }
        });
    }
    let factor = if op == MEAN { 1.0 / n as f64 } else { 1.0 };
    let blocks = inner.div_ceil(BLOCK);
    space.split(outer * blocks, n * BLOCK, |part, _| {
        for place in part {
            let (o, j0) = (place / blocks, place % blocks * BLOCK);
            for j in (j0..inner.min(j0 + BLOCK)).step_by(LANES) {
                let (count, column) = ((inner - j).min(LANES), src.add(o * n * inner + j));
                let value = match op {
                    SUM | MEAN => column_sums(column, n, inner, count, factor),
                    MAX => column_fold(column, n, inner, count, f32::NEG_INFINITY, F32s::max),
                    _ => column_fold(column, n, inner, count, f32::INFINITY, F32s::min),
                };
                store_part(dst.add(o * inner + j), value, count);
            }
        }
    });
}

#[inline(never)]
unsafe fn column_sums<T: Element>(p: *const T, n: usize, stride: usize, count: usize, factor: f64) -> F32s {
    let mut sums = F64s::zero();
    for i in 0..n {
        sums = sums.add(F64s::from(load_part(p.add(i * stride), count)));
    }
    sums.narrowed(factor)
}

#[inline(always)]
unsafe fn column_fold<T: Element>(
    p: *const T,
    n: usize,
    stride: usize,
    count: usize,
    start: f32,
    f: impl Fn(F32s, F32s) -> F32s,
) -> F32s {
    let mut best = F32s::splat(start);
    for i in 0..n {
        best = f(best, load_part(p.add(i * stride), count));
    }
    best
}

/// Column of each row's largest value, the first of equals; a NaN counts as largest.
pub unsafe fn argmax<T: Element>(rows: Range<usize>, cols: usize, dst: *mut i32, src: *const T) {
    for r in rows {
        let row = src.add(r * cols);
        let mut best = f32::NEG_INFINITY;
        let mut place = 0;
        for j in 0..cols {
            let v = T::load(row.add(j));
            if v != v {
                place = j;
                break;
            }
            if v > best {
                best = v;
                place = j;
            }
        }
        dst.add(r).write_unaligned(place as i32);
    }
}

/// Sums of each row up to each place, or, with `reverse`, from it on; in f64. `dst` may be `src`.
pub unsafe fn cumsum<T: Element>(rows: Range<usize>, cols: usize, reverse: bool, dst: *mut T, src: *const T) {
    for r in rows {
        let mut sum = 0.0;
        for j in 0..cols {
            let at = r * cols + if reverse { cols - 1 - j } else { j };
            sum += T::load(src.add(at)) as f64;
            T::store(dst.add(at), sum as f32);
        }
    }
}

/// `dst[j] = sum over rows of f(row, j, count)` for the `count` columns from j on: in f64, in row order.
#[inline(always)]
pub unsafe fn columns_f64(
    space: Workspace,
    dst: *mut f32,
    rows: usize,
    cols: usize,
    f: impl Fn(usize, usize, usize) -> F32s,
) {
    space.split(cols.div_ceil(BLOCK), rows * BLOCK, |blocks, _| {
        for block in blocks {
            let j0 = block * BLOCK;
            let width = BLOCK.min(cols - j0);
            let mut sums = [F64s::zero(); BLOCK / LANES];
            for r in 0..rows {
                for j in (0..width).step_by(LANES) {
                    sums[j / LANES] = sums[j / LANES].add(F64s::from(f(r, j0 + j, (width - j).min(LANES))));
                }
            }
            for j in (0..width).step_by(LANES) {
                store_part(dst.add(j0 + j), sums[j / LANES].narrowed(1.0), width - j);
            }
        }
    });
}
