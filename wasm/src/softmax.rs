//! Softmax along rows and its logarithm, and their backwards.
use crate::dtype::{load_part, Element};
use crate::elementwise::{dot_f64, largest, map, sum_f64, zip};
use crate::math::exp_of_negative as exp;
use crate::simd::{F32s, LANES, SUM_LANES};
use core::ops::Range;

/// `y = softmax(x)` of each row, or its logarithm; `y` may be `x`.
pub unsafe fn forward<T: Element>(log: bool, rows: Range<usize>, cols: usize, y: *mut T, x: *const T) {
    for r in rows {
        let (y, x) = (y.add(r * cols), x.add(r * cols));
        let top = F32s::splat(largest(x, cols));
        if log {
            let log_sum = F32s::splat(libm::log(sum_exp(x, cols, top)) as f32);
            map(y, x, cols, |v| v - top - log_sum);
        } else if T::IS_F32 {
            // The exponentials are kept; rounded storage takes them twice instead.
            map(y, x, cols, |v| exp(v - top));
            let sum = sum_f64(cols, |i, count| load_part(y.add(i), count));
            let inverse = F32s::splat((1.0 / sum) as f32);
            map(y, y, cols, |e| e * inverse);
        } else {
            let inverse = F32s::splat((1.0 / sum_exp(x, cols, top)) as f32);
            map(y, x, cols, |v| exp(v - top) * inverse);
        }
    }
}

/// Sum of `e^(x - top)` over one row, in f64.
#[inline(always)]
pub unsafe fn sum_exp<T: Element>(x: *const T, n: usize, top: F32s) -> f64 {
    let whole = n / SUM_LANES * SUM_LANES;
    let mut sum = sum_f64(whole, |i, _| exp(T::load_lanes(x.add(i)) - top));
    // Lanes past the end must not count e^(0 - top).
    for i in (whole..n).step_by(LANES) {
        let lanes = exp(load_part(x.add(i), n - i) - top).lanes();
        for lane in lanes.iter().take(n - i) {
            sum += *lane as f64;
        }
    }
    sum
}

/// `dx = y * (dy - sum(dy * y))` of each row, or for the logarithm `dx = dy - e^y * sum(dy)`; `dx` may be `dy`.
pub unsafe fn backward<T: Element>(log: bool, rows: Range<usize>, cols: usize, dx: *mut T, dy: *const T, y: *const T) {
    for r in rows {
        let (dx, dy, y) = (dx.add(r * cols), dy.add(r * cols), y.add(r * cols));
        if log {
            let sum = F32s::splat(sum_f64(cols, |i, count| load_part(dy.add(i), count)) as f32);
            zip(dx, dy, y, cols, |d, y| d - exp(y) * sum);
            continue;
        }
        let sum = dot_f64(cols, |i, count| (load_part(dy.add(i), count), load_part(y.add(i), count)));
        let sum = F32s::splat(sum as f32);
        zip(dx, dy, y, cols, |d, y| y * (d - sum));
    }
}
