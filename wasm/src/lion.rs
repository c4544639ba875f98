//! Lion over flat f32 arrays with a table of records, in the order of operations of bitsandbytes' `lion`; and the interpolation of
//! arrays, for other updates.
use crate::dtype::{load_part, store_part};
use crate::optimizer::{each_active, groups, splat, Record};
use crate::simd::F32s;
use crate::workspace::Workspace;
use core::ops::Range;

/// One Lion update with decoupled decay: the sign of an interpolation, times the rate. NaN stays NaN.
pub unsafe fn lion(
    space: Workspace,
    n: usize,
    num_states: usize,
    num_records: usize,
    param: *mut f32,
    grad: *const f32,
    exp_avg: *mut f32,
    records: *const Record,
    steps: *mut u32,
    gate: *const i32,
) {
    each_active(space, n, num_records, records, steps, gate, |record, _, part| {
        let [beta1, beta2, _] = record.settings;
        let (keep1, take1, keep2, take2) = (splat(beta1), splat(1.0 - beta1), splat(beta2), splat(1.0 - beta2));
        let decay = splat(1.0 - record.learning_rate * record.weight_decay);
        let (down, up) = (splat(-record.learning_rate), splat(record.learning_rate));
        groups(record, part, n, num_states, |i, state, count| {
            let g = load_part(grad.add(i), count);
            let p = load_part(param.add(i), count) * decay;
            let m = load_part(exp_avg.add(state), count);
            let direction = m * keep1 + g * take1;
            let zero = F32s::zero();
            let change = zero.lt(direction).select(down, direction.lt(zero).select(up, direction));
            store_part(exp_avg.add(state), m * keep2 + take2 * g, count);
            store_part(param.add(i), p + change, count);
        });
    });
}

/// `dst[i]` moves to `src[i]` by a share: `weight`, times the number at `factor` unless that is null. Nothing changes where the gate
/// is set. As PyTorch's `lerp`, it starts from the nearer end.
pub unsafe fn lerp(n: Range<usize>, weight: f64, dst: *mut f32, src: *const f32, factor: *const f32, gate: *const i32) {
    if !gate.is_null() && gate.read_unaligned() != 0 {
        return;
    }
    let weight = if factor.is_null() { weight as f32 } else { weight as f32 * factor.read_unaligned() };
    let (share, rest) = (F32s::splat(weight), F32s::splat(1.0 - weight));
    for i in n.clone().step_by(crate::simd::LANES) {
        let count = (n.end - i).min(crate::simd::LANES);
        let (old, new) = (load_part(dst.add(i), count), load_part(src.add(i), count));
        let moved = if weight < 0.5 { old + share * (new - old) } else { new - (new - old) * rest };
        store_part(dst.add(i), moved, count);
    }
}
