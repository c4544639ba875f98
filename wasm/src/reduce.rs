//! Reductions of the middle of [outer, n, inner], and argmax.
//!
//! Sums are f64. The order of additions depends on `n` and on whether `inner` is 1, never on the other sizes.
use crate::dtype::{load_part, store_part, Element};
use crate::elementwise::{largest, smallest, sum_f64};
use crate::simd::{F32x4, F64x2};

const SUM: u32 = 0;
const MEAN: u32 = 1;
const MAX: u32 = 2;

/// `dst` [outer, inner] from `src` [outer, n, inner].
pub unsafe fn reduce<T: Element>(op: u32, outer: usize, n: usize, inner: usize, dst: *mut T, src: *const T) {
    let factor = if op == MEAN { 1.0 / n as f64 } else { 1.0 };
    for o in 0..outer {
        let block = src.add(o * n * inner);
        let out = dst.add(o * inner);
        if inner == 1 {
            let value = match op {
                SUM => sum_f64(n, |i, count| load_part(block.add(i), count)) as f32,
                MEAN => (sum_f64(n, |i, count| load_part(block.add(i), count)) / n as f64) as f32,
                MAX => largest(block, n),
                _ => smallest(block, n),
            };
            T::store(out, value);
            continue;
        }
        let mut j = 0;
        while j < inner {
            let count = (inner - j).min(4);
            let column = block.add(j);
            let value = if op <= MEAN {
                column_sums(column, n, inner, count, factor)
            } else if op == MAX {
                column_fold(column, n, inner, count, f32::NEG_INFINITY, F32x4::max)
            } else {
                column_fold(column, n, inner, count, f32::INFINITY, F32x4::min)
            };
            store_part(out.add(j), value, count);
            j += 4;
        }
    }
}

#[inline(always)]
unsafe fn column_sums<T: Element>(p: *const T, n: usize, stride: usize, count: usize, factor: f64) -> F32x4 {
    let (mut low, mut high) = (F64x2::splat(0.0), F64x2::splat(0.0));
    for i in 0..n {
        let v = load_part(p.add(i * stride), count);
        low = low.add(F64x2::low(v));
        high = high.add(F64x2::high(v));
    }
    let (l, h) = (low.lanes(), high.lanes());
    F32x4::from_lanes([(l[0] * factor) as f32, (l[1] * factor) as f32, (h[0] * factor) as f32, (h[1] * factor) as f32])
}

#[inline(always)]
unsafe fn column_fold<T: Element>(
    p: *const T,
    n: usize,
    stride: usize,
    count: usize,
    start: f32,
    f: impl Fn(F32x4, F32x4) -> F32x4,
) -> F32x4 {
    let mut best = F32x4::splat(start);
    for i in 0..n {
        best = f(best, load_part(p.add(i * stride), count));
    }
    best
}

/// Column of each row's largest value, the first of equals; a NaN counts as largest.
pub unsafe fn argmax<T: Element>(rows: usize, cols: usize, dst: *mut i32, src: *const T) {
    for r in 0..rows {
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

/// Adds `weight(row)`-wise products of rows into f64 column sums: `dst[j] = sum over rows of f(row, j)`, in row order.
///
/// # Safety
/// As `f`; `dst` holds `cols` elements.
#[inline(always)]
pub unsafe fn columns_f64(dst: *mut f32, rows: usize, cols: usize, f: impl Fn(usize, usize, usize) -> F32x4) {
    // Blocks of columns, so that each row gives a few cache lines at a time.
    const BLOCK: usize = 64;
    let mut j0 = 0;
    while j0 < cols {
        let width = if cols - j0 < BLOCK { cols - j0 } else { BLOCK };
        let mut sums = [F64x2::splat(0.0); BLOCK / 2];
        for r in 0..rows {
            let mut j = 0;
            while j < BLOCK && j < width {
                let v = f(r, j0 + j, (width - j).min(4));
                sums[j / 2] = sums[j / 2].add(F64x2::low(v));
                sums[j / 2 + 1] = sums[j / 2 + 1].add(F64x2::high(v));
                j += 4;
            }
        }
        let mut j = 0;
        while j < BLOCK && j < width {
            let (l, h) = (sums[j / 2].lanes(), sums[j / 2 + 1].lanes());
            let value = F32x4::from_lanes([l[0] as f32, l[1] as f32, h[0] as f32, h[1] as f32]);
            store_part(dst.add(j0 + j), value, (width - j).min(4));
            j += 4;
        }
        j0 += BLOCK;
    }
}
