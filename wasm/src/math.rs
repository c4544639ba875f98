//! Transcendental functions of lanes, each within about 2 ulp of the true value where that is a normal number.
//!
//! A lane's result depends on that lane alone, so a tensor's element gets the same bits wherever it lies. Polynomials
//! are near-minimax fits on the reduced ranges named beside them.
use crate::simd::{F32s, U32s, LANES};

#[inline(always)]
fn polynomial<const N: usize>(x: F32s, coefficients: [f32; N]) -> F32s {
    let mut sum = F32s::splat(coefficients[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = sum * x + F32s::splat(coefficients[i]);
    }
    sum
}

/// `x = n ln 2 + r` with integer `n` and |r| <= ln 2 / 2: first `r`, then `n` as the low bits of a float.
#[inline(always)]
fn exp_reduced(x: F32s) -> (F32s, F32s) {
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    let shift = F32s::splat(12_582_912.0);
    let shifted = x * F32s::splat(core::f32::consts::LOG2_E) + shift;
    let n = shifted - shift;
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    (x - n * F32s::splat(0.693_359_4) - n * F32s::splat(-2.121_944_4e-4), shifted)
}

/// `e^r` and the bits of `n`, of [`exp_reduced`]. The polynomial is summed by pairs, of which none waits for another.
#[inline(always)]
fn exp_of_reduced((r, shifted): (F32s, F32s)) -> (F32s, U32s) {
    let square = r * r;
    let low = F32s::splat(0.5) + F32s::splat(0.166_666_66) * r;
    let middle = F32s::splat(0.041_666_28) + F32s::splat(0.008_333_504) * r;
    let high = F32s::splat(0.001_394_575_2) + F32s::splat(0.000_197_892_66) * r;
    let p = low + square * (middle + square * high);
    (F32s::splat(1.0) + (r + square * p), shifted.bits().sub(U32s::splat(0x4b40_0000)))
}

#[inline(always)]
fn exp_parts(x: F32s) -> (F32s, U32s) {
    exp_of_reduced(exp_reduced(x))
}

/// `2^n` for integer lanes from -126 to 127; infinity for 128.
#[inline(always)]
fn power_of_two(n: U32s) -> F32s {
    n.add(U32s::splat(127)).shl::<23>().floats()
}

/// `e^x`; 0 below -104, infinity above 88.8.
#[inline(always)]
pub fn exp(x: F32s) -> F32s {
    let (y, n) = exp_parts(x.at_least(-104.0).at_most(89.0));
    // Two factors, as 2^n alone may overflow or be subnormal where the result is not.
    let half = n.sar::<1>();
    y * power_of_two(half) * power_of_two(n.sub(half))
}

/// Below it, [`exp_of_negative`] is 0.
const LOWEST: f32 = -87.336_54;

/// `e^x` for x <= 0 (or NaN), as softmax needs it: 0 where the result would be subnormal.
#[inline(always)]
pub fn exp_of_negative(x: F32s) -> F32s {
    exp_of_negative_reduced(x, exp_reduced(x.at_least(LOWEST)))
}

#[inline(always)]
fn exp_of_negative_reduced(x: F32s, reduced: (F32s, F32s)) -> F32s {
    let (y, n) = exp_of_reduced(reduced);
    x.lt(F32s::splat(LOWEST)).select(F32s::zero(), y * power_of_two(n))
}

/// Calls `f(i, e^x(i))` with [`exp_of_negative`] for each vector's first place `i` below `n`, a multiple of [`LANES`]. The next
/// argument is reduced before the power is there, so that neither waits for the other; `x` is also called with `n`.
#[inline(always)]
pub fn exps_of_negatives(n: usize, x: impl Fn(usize) -> F32s, mut f: impl FnMut(usize, F32s)) {
    let reduced = |i: usize| {
        let x = x(i);
        (x, exp_reduced(x.at_least(LOWEST)))
    };
    let mut held = reduced(0);
    for i in (0..n).step_by(LANES) {
        let next = reduced(i + LANES);
        f(i, exp_of_negative_reduced(held.0, held.1));
        held = next;
    }
}

/// `e^x` from -87 on, and `e^-87` below; infinity where the power of two is 128, from 88.4 on.
#[inline(always)]
fn exp_from_lowest(x: F32s) -> F32s {
    let (y, n) = exp_parts(x.at_least(-87.0).at_most(89.0));
    y * power_of_two(n)
}

/// Natural logarithm of positive normal lanes (0 gives -87.3; not for infinities or NaN).
#[inline(always)]
pub fn log_of_normal(x: F32s) -> F32s {
    let x = x.at_least(f32::MIN_POSITIVE);
    // x = 2^e m with m in [sqrt(1/2), sqrt(2)).
    let shifted = x.bits().sub(U32s::splat(0x3f35_04f3));
    let e = shifted.sar::<23>();
    let m = x.bits().sub(e.shl::<23>()).floats();
    let e = e.signed_to_f32();
    let f = m - F32s::splat(1.0);
    let s = f / (F32s::splat(2.0) + f);
    let z = s * s;
    let r = z * polynomial(z, [0.666_666_6, 0.400_003_55, 0.285_358_9, 0.236_105_26]);
    let half_square = F32s::splat(0.5) * f * f;
    let low = s * (half_square + r) + e * F32s::splat(-2.121_944_4e-4);
    e * F32s::splat(0.693_359_4) - ((half_square - low) - f)
}

/// Cosine and sine of `2 pi u`, for u in [0, 1).
#[inline(always)]
pub fn cos_sin_turns(u: F32s) -> (F32s, F32s) {
    let quarter = u * F32s::splat(4.0);
    let q = quarter.nearest();
    let r = quarter - q; // exact, |r| <= 1/2
    let z = r * r;
    let sin = r * polynomial(z, [1.570_796_4, -0.645_964_1, 0.079_692_58, -0.004_681_266, 0.000_158_205_85]);
    let cos = polynomial(z, [1.0, -1.233_700_5, 0.253_669_2, -0.020_860_068, 0.000_903_625_5]);
    let q = q.to_int();
    let odd = q.and(U32s::splat(1)).eq(U32s::splat(1));
    let cos_sign = q.add(U32s::splat(1)).and(U32s::splat(2)).shl::<30>();
    let sin_sign = q.and(U32s::splat(2)).shl::<30>();
    (odd.select(sin, cos).bits().xor(cos_sign).floats(), odd.select(cos, sin).bits().xor(sin_sign).floats())
}

/// `1 / (1 + e^-x)`; 0 where that would be subnormal.
#[inline(always)]
pub fn sigmoid(x: F32s) -> F32s {
    F32s::splat(1.0) / (F32s::splat(1.0) + exp_from_lowest(-x))
}

/// `x` times its sigmoid, by one division: a product with the sigmoid would round once more.
#[inline(always)]
pub fn silu(x: F32s) -> F32s {
    x / (F32s::splat(1.0) + exp_from_lowest(-x))
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: F32s) -> F32s {
    let magnitude = x.abs();
    let z = x * x;
    // |x| < 0.625
    let p = polynomial(z, [-0.333_333_3, 0.133_332_04, -0.053_946_454, 0.021_698_69, -0.008_171_706, 0.002_137_163]);
    let near = x + x * z * p;
    let far = F32s::splat(1.0) - F32s::splat(2.0) / (exp_from_lowest(magnitude + magnitude) + F32s::splat(1.0));
    let sign = x.bits().and(U32s::splat(0x8000_0000));
    magnitude.lt(F32s::splat(0.625)).select(near, far.bits().or(sign).floats())
}

/// `x^y`, of f64 lanes rounded once.
#[inline(always)]
pub fn pow(x: F32s, y: F32s) -> F32s {
    let (x, y) = (x.lanes(), y.lanes());
    F32s::from_lanes(core::array::from_fn(|i| pow_of_one(x[i], y[i])))
}

/// Not inlined, as it is long.
#[inline(never)]
fn pow_of_one(x: f32, y: f32) -> f32 {
    libm::pow(x as f64, y as f64) as f32
}

/// `ln(1 + e^x)`, of f64 lanes rounded once.
#[inline(always)]
pub fn softplus(x: F32s) -> F32s {
    x.each(softplus_of_one)
}

/// Not inlined, as it is long.
#[inline(never)]
fn softplus_of_one(x: f32) -> f32 {
    // The exponential of the negative magnitude cannot overflow.
    ((x as f64).max(0.0) + libm::log1p(libm::exp(-libm::fabs(x as f64)))) as f32
}

/// The standard normal distribution function.
#[inline(always)]
pub fn normal_cdf(x: F32s) -> F32s {
    cdf_of_tail(x, cdf_tail(x, exp_of_negative(normal_exponent(x))))
}

/// The exponent of the standard normal density.
#[inline(always)]
pub fn normal_exponent(x: F32s) -> F32s {
    F32s::splat(-0.5) * (x * x)
}

/// What of the distribution lies below -|x|: `power`, which is e to [`normal_exponent`], times a smooth function of `t`. Its
/// polynomial is summed by pairs, of which none waits for another.
#[inline(always)]
pub fn cdf_tail(x: F32s, power: F32s) -> F32s {
    let t = F32s::splat(1.0) / (F32s::splat(1.0) + F32s::splat(0.212_132_04) * x.abs());
    let square = t * t;
    let pair = |i: usize| F32s::splat(CDF_TAIL[i]) + F32s::splat(CDF_TAIL[i + 1]) * t;
    let fourth = square * square;
    let high = pair(4) + square * pair(6) + fourth * F32s::splat(CDF_TAIL[8]);
    power * t * (pair(0) + square * pair(2) + fourth * high)
}

/// [`normal_cdf`] by its tail; for |x| < 0.75 it is 1/2 + x Q(x^2).
#[inline(always)]
pub fn cdf_of_tail(x: F32s, tail: F32s) -> F32s {
    let near = F32s::splat(0.5) + x * polynomial(x * x, CDF_NEAR);
    let far = x.lt(F32s::zero()).select(tail, F32s::splat(1.0) - tail);
    x.abs().lt(F32s::splat(0.75)).select(near, far)
}

/// The standard normal density by `power`, which is e to [`normal_exponent`].
#[inline(always)]
pub fn normal_density(power: F32s) -> F32s {
    F32s::splat(0.398_942_3) * power
}

const CDF_TAIL: [f32; 9] = [
    0.084_593_71,
    0.085_361_87,
    0.074_143_33,
    0.107_553_05,
    -0.047_513_187,
    0.274_104_62,
    -0.256_333_53,
    0.242_868_05,
    -0.064_777_926,
];
const CDF_NEAR: [f32; 5] = [0.398_942_3, -0.066_490_3, 0.009_972_37, -0.001_181_345, 0.000_102_993_88];
