//! AdamW and SGD over a flat f32 run with a range table, in the order of operations of PyTorch's single-tensor code:
//! scalars are computed in f64 and rounded to f32 where they meet a tensor.
use crate::dtype::{load_part, store_part};
use crate::simd::F32x4;

/// Elements that share hyper-parameters.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    pub start: u32,
    pub end: u32,
    pub learning_rate: f32,
    pub weight_decay: f32,
}

/// What all ranges of one AdamW step share.
#[derive(Clone, Copy)]
pub struct AdamW {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub bias_correction1: f64,
    pub bias_correction2_sqrt: f64,
}

#[inline(always)]
fn splat(value: f64) -> F32x4 {
    F32x4::splat(value as f32)
}

/// Calls `f(i, count)` for each group of up to four elements of a range.
#[inline(always)]
unsafe fn groups(range: Range, f: impl Fn(usize, usize)) {
    let (mut i, end) = (range.start as usize, range.end as usize);
    while i < end {
        f(i, if end - i < 4 { end - i } else { 4 });
        i += 4;
    }
}

/// One AdamW update with decoupled decay.
///
/// # Safety
/// The arrays hold every range.
pub unsafe fn adamw(
    param: *mut f32,
    grad: *const f32,
    exp_avg: *mut f32,
    exp_avg_sq: *mut f32,
    ranges: *const Range,
    num_ranges: usize,
    h: AdamW,
) {
    let weight = (1.0 - h.beta1) as f32;
    let (lerp, rest) = (F32x4::splat(weight), F32x4::splat(1.0 - weight));
    let (beta2, add) = (splat(h.beta2), splat(1.0 - h.beta2));
    let (correction, eps) = (splat(h.bias_correction2_sqrt), splat(h.eps));
    for r in 0..num_ranges {
        let range = ranges.add(r).read_unaligned();
        let lr = range.learning_rate as f64;
        let decay = splat(1.0 - lr * range.weight_decay as f64);
        let step = splat(-(lr / h.bias_correction1));
        groups(range, |i, count| {
            let g = load_part(grad.add(i), count);
            let p = load_part(param.add(i), count) * decay;
            let m = load_part(exp_avg.add(i), count);
            // PyTorch's lerp runs from the nearer end.
            let m = if weight < 0.5 { m + lerp * (g - m) } else { g - (g - m) * rest };
            let v = load_part(exp_avg_sq.add(i), count) * beta2 + add * g * g;
            let denominator = v.sqrt() / correction + eps;
            store_part(exp_avg.add(i), m, count);
            store_part(exp_avg_sq.add(i), v, count);
            store_part(param.add(i), p + step * m / denominator, count);
        });
    }
}

/// One SGD update with coupled decay; `buffer` is null without momentum.
///
/// # Safety
/// The arrays hold every range.
pub unsafe fn sgd(
    param: *mut f32,
    grad: *const f32,
    buffer: *mut f32,
    ranges: *const Range,
    num_ranges: usize,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
    first: bool,
) {
    let (momentum, undamped) = (splat(momentum), splat(1.0 - dampening));
    for r in 0..num_ranges {
        let range = ranges.add(r).read_unaligned();
        let decay = F32x4::splat(range.weight_decay);
        let step = F32x4::splat(-range.learning_rate);
        groups(range, |i, count| {
            let p = load_part(param.add(i), count);
            let mut d = load_part(grad.add(i), count);
            if range.weight_decay != 0.0 {
                d = d + decay * p;
            }
            if !buffer.is_null() {
                let b = if first { d } else { load_part(buffer.add(i), count) * momentum + undamped * d };
                store_part(buffer.add(i), b, count);
                d = if nesterov { d + momentum * b } else { b };
            }
            store_part(param.add(i), p + step * d, count);
        });
    }
}
