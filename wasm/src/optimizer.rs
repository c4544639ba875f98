//! AdamW and SGD over flat f32 runs with a table of records, in the order of operations of PyTorch's single-tensor code:
//! scalars are computed in f64 and rounded to f32 where they meet a tensor.
use crate::dtype::{load_part, store_part};
use crate::simd::{sqrt, F32s, LANES};
use crate::workspace::Workspace;
use core::ops::Range;

/// Elements that share settings; `src/optim/records.ts` writes it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Record {
    /// First element in the flat array, and the one past the last. An FSDP unit may have more than 2^32 elements on a rank.
    pub start: u64,
    pub end: u64,
    /// First element in the states.
    pub state: u64,
    /// Whether it is updated.
    pub active: u32,
    pub unused: u32,
    pub learning_rate: f64,
    pub weight_decay: f64,
    /// AdamW: both betas and eps. Lion: both betas. SGD: momentum, dampening, and 1 for Nesterov's.
    pub settings: [f64; 3],
}

#[inline(always)]
pub fn splat(value: f64) -> F32s {
    F32s::splat(value as f32)
}

/// `base ** exponent` by squaring: multiplications only, so the same bits everywhere.
fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut n) = (1.0, base, exponent);
    while n > 0 {
        if n % 2 == 1 {
            result *= square;
        }
        square *= square;
        n /= 2;
    }
    result
}

/// Counts a step of each active record and calls `f(record, step, part)` with its number from 1 and parts of all elements; of none
/// where the gate is set.
#[inline(always)]
pub unsafe fn each_active(
    space: Workspace,
    n: usize,
    num_records: usize,
    records: *const Record,
    steps: *mut u32,
    gate: *const i32,
    f: impl Fn(Record, u32, Range<usize>),
) {
    if !gate.is_null() && gate.read_unaligned() != 0 {
        return;
    }
    for r in 0..num_records {
        let count = steps.add(r).read_unaligned();
        steps.add(r).write_unaligned(count + (records.add(r).read_unaligned().active != 0) as u32);
    }
    space.split(n, 4, |part, _| {
        for r in 0..num_records {
            let record = records.add(r).read_unaligned();
            if record.active != 0 {
                f(record, steps.add(r).read_unaligned(), part.clone());
            }
        }
    });
}

/// Calls `f(i, state, count)` for each group of up to a vector of elements of a record that lie in a part of all. The record must lie
/// within `n` elements and `num_states`: it is memory, so nobody has checked it before.
#[inline(always)]
pub unsafe fn groups(record: Record, part: Range<usize>, n: usize, num_states: usize, f: impl Fn(usize, usize, usize)) {
    let Record { start, end, state, .. } = record;
    // Before they become addresses, which are narrower in a WASM module.
    assert!(start <= end && end <= n as u64 && state + (end - start) <= num_states as u64);
    let (start, end, state) = (start as usize, end as usize, state as usize);
    let (mut i, end) = (start.max(part.start), end.min(part.end));
    while i < end {
        f(i, state + (i - start), (end - i).min(LANES));
        i += LANES;
    }
}

/// One AdamW update with decoupled decay.
pub unsafe fn adamw(
    space: Workspace,
    n: usize,
    num_states: usize,
    num_records: usize,
    param: *mut f32,
    grad: *const f32,
    exp_avg: *mut f32,
    exp_avg_sq: *mut f32,
    records: *const Record,
    steps: *mut u32,
    gate: *const i32,
) {
    each_active(space, n, num_records, records, steps, gate, |record, step, part| {
        let [beta1, beta2, eps] = record.settings;
        let weight = (1.0 - beta1) as f32;
        let (lerp, rest) = (F32s::splat(weight), F32s::splat(1.0 - weight));
        let (add, beta2_rounded, eps) = (splat(1.0 - beta2), splat(beta2), splat(eps));
        let correction = splat(sqrt(1.0 - power(beta2, step)));
        let decay = splat(1.0 - record.learning_rate * record.weight_decay);
        let step_size = splat(-(record.learning_rate / (1.0 - power(beta1, step))));
        groups(record, part, n, num_states, |i, state, count| {
            let g = load_part(grad.add(i), count);
            let p = load_part(param.add(i), count) * decay;
            let m = load_part(exp_avg.add(state), count);
            // PyTorch's lerp runs from the nearer end.
            let m = if weight < 0.5 { m + lerp * (g - m) } else { g - (g - m) * rest };
            let v = load_part(exp_avg_sq.add(state), count) * beta2_rounded + add * g * g;
            let denominator = v.sqrt() / correction + eps;
            store_part(exp_avg.add(state), m, count);
            store_part(exp_avg_sq.add(state), v, count);
            store_part(param.add(i), p + step_size * m / denominator, count);
        });
    });
}

/// One SGD update with coupled decay; `buffer` may be null where no record has momentum.
pub unsafe fn sgd(
    space: Workspace,
    n: usize,
    num_states: usize,
    num_records: usize,
    param: *mut f32,
    grad: *const f32,
    buffer: *mut f32,
    records: *const Record,
    steps: *mut u32,
    gate: *const i32,
) {
    let num_states = if buffer.is_null() { usize::MAX } else { num_states };
    each_active(space, n, num_records, records, steps, gate, |record, step, part| {
        let [momentum, dampening, nesterov] = record.settings;
        let (factor, undamped) = (splat(momentum), splat(1.0 - dampening));
        let (decay, step_size) = (splat(record.weight_decay), splat(-record.learning_rate));
        groups(record, part, n, num_states, |i, state, count| {
            let p = load_part(param.add(i), count);
            let mut d = load_part(grad.add(i), count);
            if record.weight_decay != 0.0 {
                d = d + decay * p;
            }
            if momentum != 0.0 && !buffer.is_null() {
                let old = load_part(buffer.add(state), count);
                let b = if step == 1 { d } else { old * factor + undamped * d };
                store_part(buffer.add(state), b, count);
                d = if nesterov != 0.0 { d + factor * b } else { b };
            }
            store_part(param.add(i), p + step_size * d, count);
        });
    });
}
