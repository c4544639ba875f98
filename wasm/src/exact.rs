//! Exact sums of f64 in fixed point.
//!
//! An accumulator is `LIMBS` int64 digits of 32 bits, the first worth 2^-1074, then three counters: of NaNs, of
//! infinities, and of faults that the status record held when it was cleared. A digit takes 2^31 additions before it could overflow. Adding two accumulators digit by digit adds their
//! values, in any order, with the same result.
use crate::dtype::Element;
use crate::elementwise::sum_squares;
use crate::simd::sqrt;
use crate::status::{Status, NORM};

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

/// Adds the sum of squares of each `block` elements of `src`; the last block may be shorter.
pub unsafe fn add_squares<T: Element>(n: usize, block: usize, accumulator: *mut i64, src: *const T) {
    let mut i = 0;
    while i < n {
        add(accumulator, sum_squares(src.add(i), (n - i).min(block)));
        i += block;
    }
}

/// The norm, the factor that clips it to `max_norm` (unless null), and whether an update must not happen. Where that is
/// because the norm is not finite, the factor leaves gradients as they are.
pub unsafe fn clip_factor(
    max_norm: f64,
    error_if_nonfinite: bool,
    norm: *mut f32,
    factor: *mut f32,
    gate: *mut i32,
    accumulator: *const i64,
    status: *mut Status,
) {
    let root = sqrt(value(accumulator));
    let refused = error_if_nonfinite && !root.is_finite();
    norm.write_unaligned(root as f32);
    if !factor.is_null() {
        // A NaN passes the comparison.
        let clip = max_norm / (root + 1e-6);
        factor.write_unaligned(if refused || clip > 1.0 { 1.0 } else { clip as f32 });
    }
    if refused {
        Status::note(status, NORM, 0, root, 0);
    }
    gate.write_unaligned((refused || accumulator.add(FAULTS).read_unaligned() != 0) as i32);
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
