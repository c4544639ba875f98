//! Exact sums of f64 in fixed point.
//!
//! An accumulator is `LIMBS` int64 digits of 32 bits, the first worth 2^-1074, then three counters: of NaNs, of
//! infinities, and of faults that the status record held when it was cleared. A digit takes 2^31 additions before it could overflow. Adding two accumulators digit by digit adds their
//! values, in any order, with the same result.
use crate::dtype::Element;
use crate::elementwise::{max_abs, sum_powers};
use crate::simd::sqrt;
use crate::status::{Status, NORM};
use crate::workspace::Workspace;
use core::ops::Range;
use core::sync::atomic::{AtomicI64, Ordering};

const LIMBS: usize = 66;
const NANS: usize = LIMBS;
const INFINITIES: usize = LIMBS + 1;
const FAULTS: usize = LIMBS + 2;
/// int64 words of an accumulator.
pub const WORDS: usize = LIMBS + 3;

unsafe fn bump(accumulator: *mut i64, index: usize, value: i64) {
    let at = accumulator.add(index);
    at.write_unaligned(at.read_unaligned().wrapping_add(value));
}

/// Nothing but the fault that there is, if any.
pub unsafe fn clear(accumulator: *mut i64, status: *const Status) {
    core::ptr::write_bytes(accumulator, 0, WORDS);
    bump(accumulator, FAULTS, Status::is_set(status) as i64);
}

/// Adds one non-negative value.
pub unsafe fn add(accumulator: *mut i64, value: f64) {
    if value != value {
        return bump(accumulator, NANS, 1);
    }
    if value == f64::INFINITY {
        return bump(accumulator, INFINITIES, 1);
    }
    let bits = value.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as usize;
    let fraction = bits & ((1 << 52) - 1);
    // value = mantissa * 2^(place - 1074)
    let (mantissa, place) = if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 52, exponent - 1) };
    let limb = place / 32;
    let digits = (mantissa as u128) << (place % 32);
    bump(accumulator, limb, (digits & 0xffff_ffff) as i64);
    bump(accumulator, limb + 1, ((digits >> 32) & 0xffff_ffff) as i64);
    bump(accumulator, limb + 2, (digits >> 64) as i64);
}

/// Adds the sum of magnitudes to a power (1, 2 or 3) of each `block` elements of `src`; the last block may be shorter.
pub unsafe fn add_powers<T: Element>(
    space: Workspace,
    power: u32,
    n: usize,
    block: usize,
    accumulator: *mut i64,
    src: *const T,
) {
    let all = n.div_ceil(block.max(1));
    let part_of = |sums: *mut i64, blocks: Range<usize>| {
        for i in blocks.map(|b| b * block) {
            add(sums, sum_powers(src.add(i), (n - i).min(block), power));
        }
    };
    space.split(all, block, |blocks, _| {
        if blocks.len() == all {
            return part_of(accumulator, blocks);
        }
        let mut own = [0; WORDS];
        part_of(own.as_mut_ptr(), blocks);
        for (word, value) in own.into_iter().enumerate() {
            AtomicI64::from_ptr(accumulator.add(word)).fetch_add(value, Ordering::Relaxed);
        }
    });
}

/// The largest of `n` magnitudes, and 1 if there is a fault: what is compared over ranks.
pub unsafe fn largest(n: usize, dst: *mut f32, src: *const f32, status: *const Status) {
    max_abs(n, dst, src);
    dst.add(1).write_unaligned(Status::is_set(status) as u32 as f32);
}

/// An accumulator of the value and the fault that [`largest`] gave.
pub unsafe fn accumulate_largest(accumulator: *mut i64, src: *const f32) {
    core::ptr::write_bytes(accumulator, 0, WORDS);
    add(accumulator, src.read_unaligned() as f64);
    bump(accumulator, FAULTS, (src.add(1).read_unaligned() != 0.0) as i64);
}

/// What becomes of a norm that is not finite.
const FAULT: u32 = 1;
const SKIP: u32 = 2;

/// The norm of unscaled gradients: the root of a sum of magnitudes to a power, over `scale`. Also the factor that unscales them
/// and clips them to `max_norm` (unless null), and whether an update must not happen. Where that is because the norm is not
/// finite, the factor leaves gradients as they are, and `overflow` is set unless null.
pub unsafe fn clip_factor(
    power: u32,
    max_norm: f64,
    if_nonfinite: u32,
    norm: *mut f32,
    factor: *mut f32,
    gate: *mut i32,
    overflow: *mut i32,
    accumulator: *const i64,
    scale: *const f32,
    status: *mut Status,
) {
    let total = value(accumulator);
    let root = match power {
        1 => total,
        2 => sqrt(total),
        _ => libm::cbrt(total),
    };
    let inverse = if scale.is_null() { 1.0 } else { 1.0 / scale.read_unaligned() as f64 };
    let root = root * inverse;
    let refused = if_nonfinite != 0 && !root.is_finite();
    norm.write_unaligned(root as f32);
    if !factor.is_null() {
        // A NaN passes the comparison.
        let clip = max_norm / (root + 1e-6);
        let clip = if clip > 1.0 { 1.0 } else { clip };
        factor.write_unaligned(if refused { 1.0 } else { (clip * inverse) as f32 });
    }
    if refused && if_nonfinite == FAULT {
        Status::note(status, NORM, 0, root, 0);
    }
    if refused && if_nonfinite == SKIP && !overflow.is_null() {
        overflow.write_unaligned(1);
    }
    gate.write_unaligned((refused || accumulator.add(FAULTS).read_unaligned() != 0) as i32);
}

/// The loss scale of the next step: shrunk after an overflow, grown after `interval` steps without one (PyTorch's
/// `_amp_update_scale_`). `progress` holds those steps.
pub unsafe fn update_scale(
    growth: f64,
    backoff: f64,
    interval: u32,
    scale: *mut f32,
    progress: *mut i32,
    overflow: *mut i32,
) {
    let current = scale.read_unaligned() as f64;
    let steps = progress.read_unaligned() + 1;
    let overflowed = overflow.read_unaligned() != 0;
    overflow.write_unaligned(0);
    if overflowed {
        scale.write_unaligned((current * backoff) as f32);
    }
    let grows = !overflowed && steps as u32 == interval;
    let grown = (current * growth) as f32;
    if grows && grown.is_finite() {
        scale.write_unaligned(grown);
    }
    progress.write_unaligned(if overflowed || grows { 0 } else { steps });
}

/// The value, rounded to nearest even.
pub unsafe fn value(accumulator: *const i64) -> f64 {
    if accumulator.add(NANS).read_unaligned() != 0 {
        return f64::NAN;
    }
    if accumulator.add(INFINITIES).read_unaligned() != 0 {
        return f64::INFINITY;
    }
    // From the lowest digit up: `top` holds the three highest digits seen that matter, `sticky` whether any below is set.
    let mut carry: u64 = 0;
    let mut top: u128 = 0;
    let mut sticky = false;
    let mut place: i32 = -1074;
    for i in 0..LIMBS + 2 {
        let sum = if i < LIMBS { accumulator.add(i).read_unaligned() as u64 } else { 0 } as u128 + carry as u128;
        let digit = sum & 0xffff_ffff;
        carry = (sum >> 32) as u64;
        if i >= 3 {
            // Four digits fit in `top`; the lowest leaves when a higher one that is set comes in.
            if digit == 0 && higher_are_zero(accumulator, i, carry) {
                break;
            }
            sticky |= top & 0xffff_ffff != 0;
            top >>= 32;
            place += 32;
            top |= digit << 64;
        } else {
            top |= digit << (32 * i);
        }
    }
    if sticky {
        top |= 1;
    }
    libm::scalbn(top as f64, place)
}

unsafe fn higher_are_zero(accumulator: *const i64, from: usize, carry: u64) -> bool {
    for i in from + 1..LIMBS {
        if accumulator.add(i).read_unaligned() != 0 {
            return false;
        }
    }
    carry == 0
}
