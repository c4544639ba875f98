//! RMSNorm and LayerNorm with their backwards. Row sums are f64; statistics are kept as f32.
//!
//! A missing weight or bias is a null pointer.
use crate::dtype::{load_part, store_part, Element};
use crate::elementwise::{dot_f64, map, sum_f64, sum_squares, zip};
use crate::reduce::columns_f64;
use crate::simd::{sqrt, F32s, LANES, SUM_LANES};
use crate::workspace::Workspace;
use core::ops::Range;

#[inline(always)]
unsafe fn weight<T: Element>(w: *const T, i: usize, count: usize) -> F32s {
    if w.is_null() {
        F32s::splat(1.0)
    } else {
        load_part(w.add(i), count)
    }
}

/// `y = w * round(x * rstd)`: the normalized value is rounded to the dtype before the weight, as Hugging Face does; or, of
/// zero-centered weights, `y = (1 + w) * x * rstd`, where it does not.
pub unsafe fn rms<T: Element>(
    rows: Range<usize>,
    cols: usize,
    eps: f64,
    zero_centered: bool,
    y: *mut T,
    rstd: *mut f32,
    x: *const T,
    w: *const T,
) {
    for r in rows {
        let (y, x) = (y.add(r * cols), x.add(r * cols));
        let scale = (1.0 / sqrt(sum_squares(x, cols) / cols as f64 + eps)) as f32;
        rstd.add(r).write_unaligned(scale);
        let scale = F32s::splat(scale);
        if w.is_null() {
            map(y, x, cols, |v| v * scale);
        } else if zero_centered {
            zip(y, x, w, cols, |v, w| (F32s::splat(1.0) + w) * (v * scale));
        } else {
            zip(y, x, w, cols, |v, w| w * T::round_lanes(v * scale));
        }
    }
}

/// Gradients of [`rms`]; `dx` and `dw` may be null.
pub unsafe fn rms_backward<T: Element>(
    space: Workspace,
    rows: usize,
    cols: usize,
    zero_centered: bool,
    dx: *mut T,
    dw: *mut f32,
    dy: *const T,
    x: *const T,
    w: *const T,
    rstd: *const f32,
) {
    let scale_of = |r: usize| F32s::splat(rstd.add(r).read_unaligned());
    let center = F32s::splat(if zero_centered && !w.is_null() { 1.0 } else { 0.0 });
    let weight = |i: usize, count: usize| center + weight(w, i, count);
    if !dw.is_null() {
        columns_f64(space, dw, rows, cols, |r, j, count| {
            let at = r * cols + j;
            let normal = load_part(x.add(at), count) * scale_of(r);
            load_part(dy.add(at), count) * if zero_centered { normal } else { T::round_lanes(normal) }
        });
    }
    if dx.is_null() {
        return;
    }
    space.split(rows, cols, |part, _| {
        for r in part {
            let (dx, dy, x) = (dx.add(r * cols), dy.add(r * cols), x.add(r * cols));
            let rstd = rstd.add(r).read_unaligned();
            let sum =
                dot_f64(cols, |i, count| (load_part(dy.add(i), count) * weight(i, count), load_part(x.add(i), count)));
            let mean = F32s::splat((sum * rstd as f64 * rstd as f64 / cols as f64) as f32);
            let scale = F32s::splat(rstd);
            for i in (0..cols).step_by(LANES) {
                let count = (cols - i).min(LANES);
                let g = load_part(dy.add(i), count) * weight(i, count);
                store_part(dx.add(i), scale * (g - mean * load_part(x.add(i), count)), count);
            }
        }
    });
}

/// `y = w * (x - mean) * rstd + b`.
pub unsafe fn layer<T: Element>(
    rows: Range<usize>,
    cols: usize,
    eps: f64,
    y: *mut T,
    mean: *mut f32,
    rstd: *mut f32,
    x: *const T,
    w: *const T,
    b: *const T,
) {
    for r in rows {
        let (y, x) = (y.add(r * cols), x.add(r * cols));
        let center = (sum_f64(cols, |i, count| load_part(x.add(i), count)) / cols as f64) as f32;
        let middle = F32s::splat(center);
        // Deviations from the rounded mean; its rounding error is taken out of the variance again.
        let whole = cols / SUM_LANES * SUM_LANES;
        let squares = dot_f64(whole, |i, _| {
            let d = T::load_lanes(x.add(i)) - middle;
            (d, d)
        });
        let deviations = sum_f64(whole, |i, _| T::load_lanes(x.add(i)) - middle);
        let (mut squares, mut deviations) = (squares, deviations);
        for i in whole..cols {
            let d = (T::load(x.add(i)) - center) as f64;
            squares += d * d;
            deviations += d;
        }
        let n = cols as f64;
        let variance = squares / n - (deviations / n) * (deviations / n);
        let scale = (1.0 / sqrt(variance + eps)) as f32;
        mean.add(r).write_unaligned(center);
        rstd.add(r).write_unaligned(scale);
        let scale = F32s::splat(scale);
        for i in (0..cols).step_by(LANES) {
            let count = (cols - i).min(LANES);
            let mut v = (load_part(x.add(i), count) - middle) * scale * weight(w, i, count);
            if !b.is_null() {
                v = v + load_part(b.add(i), count);
            }
            store_part(y.add(i), v, count);
        }
    }
}

/// Gradients of [`layer`]; `dx`, `dw` and `db` may be null.
pub unsafe fn layer_backward<T: Element>(
    space: Workspace,
    rows: usize,
    cols: usize,
    dx: *mut T,
    dw: *mut f32,
    db: *mut f32,
    dy: *const T,
    x: *const T,
    w: *const T,
    mean: *const f32,
    rstd: *const f32,
) {
    let normal = |r: usize, j: usize, count: usize| {
        let center = F32s::splat(mean.add(r).read_unaligned());
        (load_part(x.add(r * cols + j), count) - center) * F32s::splat(rstd.add(r).read_unaligned())
    };
    if !dw.is_null() {
        columns_f64(space, dw, rows, cols, |r, j, count| load_part(dy.add(r * cols + j), count) * normal(r, j, count));
    }
    if !db.is_null() {
        columns_f64(space, db, rows, cols, |r, j, count| load_part(dy.add(r * cols + j), count));
    }
    if dx.is_null() {
        return;
    }
    space.split(rows, cols, |part, _| {
        for r in part {
            let dy = dy.add(r * cols);
            let gradient = |i: usize, count: usize| load_part(dy.add(i), count) * weight(w, i, count);
            let n = cols as f64;
            let mean_g = F32s::splat((sum_f64(cols, gradient) / n) as f32);
            let dot = dot_f64(cols, |i, count| (gradient(i, count), normal(r, i, count)));
            let mean_gx = F32s::splat((dot / n) as f32);
            let scale = F32s::splat(rstd.add(r).read_unaligned());
            for i in (0..cols).step_by(LANES) {
                let count = (cols - i).min(LANES);
                let v = scale * (gradient(i, count) - mean_g - normal(r, i, count) * mean_gx);
                store_part(dx.add(r * cols + i), v, count);
            }
        }
    });
}
