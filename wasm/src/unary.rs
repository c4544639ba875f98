//! Functions of one value and their derivatives, by the code of `unaryOp`.
use crate::dtype::{load_part, store_part, Element};
use crate::elementwise::{map, zip};
use crate::math;
use crate::scratch_areas;
use crate::simd::{F32s, LANES};
use crate::workspace::Workspace;
use core::ops::Range;

/// Makes each name a code: its place.
macro_rules! codes {
    ($place:expr;) => {};
    ($place:expr; $name:ident $($rest:ident)*) => {
        const $name: u32 = $place;
        codes! { $place + 1; $($rest)* }
    };
}
codes! { 0; NEG EXP LOG SQRT RSQRT TANH SIGMOID SILU GELU GELU_TANH RELU SQUARE ABS RECIPROCAL SIN COS ADD_SCALAR
MUL_SCALAR CLAMP POW_SCALAR SOFTPLUS }

const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

#[inline(always)]
fn splat(v: f32) -> F32s {
    F32s::splat(v)
}

#[inline(always)]
fn log(x: F32s) -> F32s {
    x.each(|v| libm::log(v as f64) as f32)
}
#[inline(always)]
fn sin(x: F32s) -> F32s {
    x.each(|v| libm::sin(v as f64) as f32)
}
#[inline(always)]
fn cos(x: F32s) -> F32s {
    x.each(|v| libm::cos(v as f64) as f32)
}

/// tanh of the argument that the tanh approximation of GELU takes.
#[inline(always)]
fn gelu_inner(x: F32s) -> F32s {
    math::tanh(splat(SQRT_2_OVER_PI) * (x + splat(GELU_CUBIC) * x * x * x))
}

/// Elements of which the parts of a distribution function are computed one after the other.
const TOGETHER: usize = 256;

/// Calls `f` with the places of vectors, their values, the normal distribution function of these, and e to its exponent. In parts,
/// each of so few operations that a processor computes several vectors of it at a time.
#[inline(always)]
unsafe fn each_normal<T: Element>(n: usize, src: *const T, f: impl Fn(usize, F32s, F32s, F32s)) {
    let (mut powers, mut tails) = ([0.0f32; TOGETHER], [0.0f32; TOGETHER]);
    let (powers, tails) = (powers.as_mut_ptr(), tails.as_mut_ptr());
    for start in (0..n).step_by(TOGETHER) {
        let count = TOGETHER.min(n - start);
        let last = (count - 1) / LANES * LANES;
        let x = |i: usize| load_part(src.add(start + i), count - i);
        math::exps_of_negatives(last + LANES, |i| math::normal_exponent(x(i.min(last))), |i, e| e.store(powers.add(i)));
        for i in (0..count).step_by(LANES) {
            math::cdf_tail(x(i), F32s::load(powers.add(i))).store(tails.add(i));
        }
        for i in (0..count).step_by(LANES) {
            f(start + i, x(i), math::cdf_of_tail(x(i), F32s::load(tails.add(i))), F32s::load(powers.add(i)));
        }
    }
}

/// `dst = op(src)`.
pub unsafe fn forward<T: Element>(op: u32, n: Range<usize>, p0: f32, p1: f32, dst: *mut T, src: *const T) {
    let (dst, src, n) = (dst.add(n.start), src.add(n.start), n.len());
    let a = splat(p0);
    let one = splat(1.0);
    match op {
        NEG => map(dst, src, n, |x| -x),
        EXP => map(dst, src, n, math::exp),
        LOG => map(dst, src, n, log),
        SQRT => map(dst, src, n, F32s::sqrt),
        RSQRT => map(dst, src, n, |x| one / x.sqrt()),
        TANH => map(dst, src, n, math::tanh),
        SIGMOID => map(dst, src, n, math::sigmoid),
        SILU => map(dst, src, n, math::silu),
        GELU => each_normal(n, src, |i, x, cdf, _| store_part(dst.add(i), x * cdf, n - i)),
        GELU_TANH => map(dst, src, n, |x| splat(0.5) * x * (one + gelu_inner(x))),
        RELU => map(dst, src, n, |x| x.at_least(0.0)),
        SQUARE => map(dst, src, n, |x| x * x),
        ABS => map(dst, src, n, F32s::abs),
        RECIPROCAL => map(dst, src, n, |x| one / x),
        SIN => map(dst, src, n, sin),
        COS => map(dst, src, n, cos),
        ADD_SCALAR => map(dst, src, n, |x| x + a),
        MUL_SCALAR => map(dst, src, n, |x| x * a),
        CLAMP => map(dst, src, n, |x| x.at_least(p0).at_most(p1)),
        POW_SCALAR => map(dst, src, n, |x| math::pow(x, a)),
        SOFTPLUS => map(dst, src, n, math::softplus),
        _ => {}
    }
}

/// Elements that are widened at once.
const CHUNK: usize = 1024;

scratch_areas! { Space {
    dy: CHUNK,
    x: CHUNK,
} }

/// `dx = dy * op'(x)`. Narrow types are computed as f32 of working space: functions for each type would be a tenth of a module.
pub unsafe fn backward<T: Element>(
    space: Workspace,
    op: u32,
    part: Range<usize>,
    p0: f32,
    p1: f32,
    dx: *mut T,
    dy: *const T,
    x: *const T,
) {
    let (dx, dy, x, n) = (dx.add(part.start), dy.add(part.start), x.add(part.start), part.len());
    if T::IS_F32 {
        return backward_f32(op, n, p0, p1, dx as *mut f32, dy as *const f32, x as *const f32);
    }
    let w = Space::new(space);
    for i in (0..n).step_by(CHUNK) {
        let count = CHUNK.min(n - i);
        map(w.dy, dy.add(i), count, |d| d);
        map(w.x, x.add(i), count, |x| x);
        backward_f32(op, count, p0, p1, w.dy, w.dy, w.x);
        map(dx.add(i), w.dy, count, |d| d);
    }
}

#[inline(never)]
unsafe fn backward_f32(op: u32, n: usize, p0: f32, p1: f32, dx: *mut f32, dy: *const f32, x: *const f32) {
    let (a, b) = (splat(p0), splat(p1));
    let (zero, half, one) = (F32s::zero(), splat(0.5), splat(1.0));
    match op {
        NEG => map(dx, dy, n, |d| -d),
        EXP => zip(dx, dy, x, n, |d, x| d * math::exp(x)),
        LOG => zip(dx, dy, x, n, |d, x| d / x),
        SQRT => zip(dx, dy, x, n, |d, x| d * half / x.sqrt()),
        RSQRT => zip(dx, dy, x, n, |d, x| d * splat(-0.5) / (x * x.sqrt())),
        TANH => zip(dx, dy, x, n, |d, x| {
            let t = math::tanh(x);
            d * (one - t * t)
        }),
        SIGMOID => zip(dx, dy, x, n, |d, x| {
            let s = math::sigmoid(x);
            d * s * (one - s)
        }),
        SILU => zip(dx, dy, x, n, |d, x| {
            let s = math::sigmoid(x);
            d * s * (one + x * (one - s))
        }),
        GELU => each_normal(n, x, |i, x, cdf, power| {
            let d = load_part(dy.add(i), n - i);
            store_part(dx.add(i), d * (cdf + x * math::normal_density(power)), n - i);
        }),
        GELU_TANH => zip(dx, dy, x, n, |d, x| {
            let t = gelu_inner(x);
            let slope = splat(SQRT_2_OVER_PI) * (one + splat(3.0 * GELU_CUBIC) * x * x);
            d * (half * (one + t) + half * x * (one - t * t) * slope)
        }),
        RELU => zip(dx, dy, x, n, |d, x| x.le(zero).select(zero, d)),
        SQUARE => zip(dx, dy, x, n, |d, x| d * (x + x)),
        ABS => zip(dx, dy, x, n, |d, x| zero.lt(x).select(d, x.lt(zero).select(-d, zero * d))),
        RECIPROCAL => zip(dx, dy, x, n, |d, x| -(d / (x * x))),
        SIN => zip(dx, dy, x, n, |d, x| d * cos(x)),
        COS => zip(dx, dy, x, n, |d, x| -(d * sin(x))),
        ADD_SCALAR => map(dx, dy, n, |d| d),
        MUL_SCALAR => map(dx, dy, n, |d| d * a),
        CLAMP => {
            // An infinite limit is none: infinities lie within it.
            let above = |x: F32s| if p0 == f32::NEG_INFINITY { a.le(x) } else { a.lt(x) };
            let below = |x: F32s| if p1 == f32::INFINITY { x.le(b) } else { x.lt(b) };
            zip(dx, dy, x, n, |d, x| above(x).select(below(x).select(d, zero), zero))
        }
        // The power 0 is constant, at 0 too.
        POW_SCALAR if p0 == 0.0 => map(dx, dy, n, |_| zero),
        POW_SCALAR => zip(dx, dy, x, n, |d, x| d * (a * math::pow(x, splat(p0 - 1.0)))),
        SOFTPLUS => zip(dx, dy, x, n, |d, x| d * math::sigmoid(x)),
        _ => {}
    }
}
