//! Softmax along rows and its logarithm, and their backwards.
use crate::dtype::{load_part, Element};
use crate::elementwise::{dot_f64, largest, map, sum_f64, zip};
use crate::math::exp_of_negative as exp;
use crate::simd::F32x4;

/// `y = softmax(x)` of each row, or its logarithm; `y` may be `x`.
pub unsafe fn forward<T: Element>(log: bool, rows: usize, cols: usize, y: *mut T, x: *const T) {
    for r in 0..rows {
        let (y, x) = (y.add(r * cols), x.add(r * cols));
        let top = F32x4::splat(largest(x, cols));
        if log {
            let log_sum = F32x4::splat(libm::log(sum_exp(x, cols, top)) as f32);
            map(y, x, cols, |v| v - top - log_sum);
        } else if T::IS_F32 {
            // The exponentials are kept; rounded storage takes them twice instead.
            map(y, x, cols, |v| exp(v - top));
            let sum = sum_f64(cols, |i, count| load_part(y.add(i), count));
            let inverse = F32x4::splat((1.0 / sum) as f32);
            map(y, y, cols, |e| e * inverse);
        } else {
            let inverse = F32x4::splat((1.0 / sum_exp(x, cols, top)) as f32);
            map(y, x, cols, |v| exp(v - top) * inverse);
        }
    }
}

/// Sum of `e^(x - top)` over one row, in f64.
#[inline(always)]
pub unsafe fn sum_exp<T: Element>(x: *const T, n: usize, top: F32x4) -> f64 {
    let whole = n & !3;
    let mut sum = sum_f64(whole, |i, _| exp(T::load4(x.add(i)) - top));
    if whole < n {
        // Lanes past the end must not count e^(0 - top).
        let lanes = exp(load_part(x.add(whole), n - whole) - top).lanes();
        for i in 0..n - whole {
            sum += lanes[i & 3] as f64;
        }
    }
    sum
}

/// `dx = y * (dy - sum(dy * y))` of each row, or for the logarithm `dx = dy - e^y * sum(dy)`; `dx` may be `dy`.
pub unsafe fn backward<T: Element>(log: bool, rows: usize, cols: usize, dx: *mut T, dy: *const T, y: *const T) {
    for r in 0..rows {
        let (dx, dy, y) = (dx.add(r * cols), dy.add(r * cols), y.add(r * cols));
        if log {
            let sum = F32x4::splat(sum_f64(cols, |i, count| load_part(dy.add(i), count)) as f32);
            zip(dx, dy, y, cols, |d, y| d - exp(y) * sum);
            continue;
        }
        let sum = dot_f64(cols, |i, count| (load_part(dy.add(i), count), load_part(y.add(i), count)));
        let sum = F32x4::splat(sum as f32);
        zip(dx, dy, y, cols, |d, y| y * (d - sum));
    }
}
