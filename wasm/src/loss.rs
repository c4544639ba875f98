//! Cross-entropy of rows of logits, fused with its gradient.
use crate::dtype::Element;
use crate::elementwise::{largest, map};
use crate::math::exp_of_negative as exp;
use crate::simd::F32s;
use crate::softmax::sum_exp;
use crate::status::{Status, LABEL};
use crate::workspace::Workspace;

/// Losses of all rows and, unless `dlogits` is null, the gradient; `dlogits` may be `logits`.
/// `smoothing` is the part of a label's weight that all classes share, `z` the factor of the squared logarithm of the sum.
/// Rows labeled `ignore` give 0, and so do those whose label is out of range: the first one is noted.
pub unsafe fn cross_entropy<T: Element>(
    space: Workspace,
    rows: usize,
    cols: usize,
    ignore: i32,
    first_row: usize,
    smoothing: f64,
    z: f64,
    losses: *mut f32,
    dlogits: *mut T,
    logits: *const T,
    labels: *const i32,
    status: *mut Status,
) {
    let label_of = |r: usize| labels.add(r).read_unaligned();
    let is_outside = |label: i32| label as isize as usize >= cols;
    // Before the rows are shared, so that the first fault is noted.
    if let Some(r) = (0..rows).find(|r| is_outside(label_of(*r)) && label_of(*r) != ignore) {
        Status::note(status, LABEL, first_row + r, label_of(r) as f64, cols);
    }
    space.split(rows, cols, |part, _| {
        for r in part {
            let (label, x) = (label_of(r), logits.add(r * cols));
            let dx = if dlogits.is_null() { dlogits } else { dlogits.add(r * cols) };
            if is_outside(label) || label == ignore {
                losses.add(r).write_unaligned(0.0);
                if !dx.is_null() {
                    core::ptr::write_bytes(dx, 0, cols);
                }
                continue;
            }
            let loss = if smoothing == 0.0 && z == 0.0 {
                row(dx, x, label as usize, cols)
            } else {
                row_with_terms(dx, x, label as usize, cols, smoothing, z)
            };
            losses.add(r).write_unaligned(loss);
        }
    });
}

#[inline(always)]
unsafe fn row<T: Element>(dx: *mut T, x: *const T, label: usize, cols: usize) -> f32 {
    let top = largest(x, cols);
    let at_label = T::load(x.add(label));
    let top4 = F32s::splat(top);
    let stores = T::IS_F32 && !dx.is_null();
    let sum = if stores {
        // The exponentials are kept where the gradient goes.
        map(dx, x, cols, |v| exp(v - top4));
        crate::elementwise::sum_f64(cols, |i, count| crate::dtype::load_part(dx.add(i), count))
    } else {
        sum_exp(x, cols, top4)
    };
    if !dx.is_null() {
        let inverse = F32s::splat((1.0 / sum) as f32);
        let p = exp(F32s::splat(at_label - top)).lanes()[0] * (1.0 / sum) as f32;
        if stores {
            map(dx, dx, cols, |e| e * inverse);
        } else {
            map(dx, x, cols, |v| exp(v - top4) * inverse);
        }
        T::store(dx.add(label), p - 1.0);
    }
    (libm::log(sum) + (top as f64 - at_label as f64)) as f32
}

/// A row whose label's weight is shared with all classes, or whose loss has a term of the logarithm of the sum.
#[inline(never)]
unsafe fn row_with_terms<T: Element>(
    dx: *mut T,
    x: *const T,
    label: usize,
    cols: usize,
    smoothing: f64,
    z: f64,
) -> f32 {
    let top = largest(x, cols);
    let at_label = T::load(x.add(label));
    let top4 = F32s::splat(top);
    let mean = crate::elementwise::sum_f64(cols, |i, count| crate::dtype::load_part(x.add(i), count)) / cols as f64;
    let sum = sum_exp(x, cols, top4);
    let log_sum = libm::log(sum) + top as f64;
    let loss = log_sum - (1.0 - smoothing) * at_label as f64 - smoothing * mean + z * log_sum * log_sum;
    if !dx.is_null() {
        let factor = ((1.0 + 2.0 * z * log_sum) / sum) as f32;
        let (shared, own) = ((smoothing / cols as f64) as f32, (1.0 - smoothing) as f32);
        let (factor4, shared4) = (F32s::splat(factor), F32s::splat(shared));
        let p = exp(F32s::splat(at_label - top)).lanes()[0] * factor;
        map(dx, x, cols, |v| exp(v - top4) * factor4 - shared4);
        T::store(dx.add(label), p - shared - own);
    }
    loss as f32
}
