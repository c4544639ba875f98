//! Loops over dense arrays, a vector at a time.
//!
//! The tail goes through the same lanes as the rest, so an element's bits do not depend on its place.
use crate::dtype::{bytes_of, load_part, store_part, Bf16, Element, Half, BF16, F16, F32, F64, I32, I64, U8};
use crate::simd::{max, min, sum_lanes_f64, F32s, F64s, LANES};
use core::ops::Range;

/// `dst[i] = f(a[i])`; `dst` may be `a`.
#[inline(always)]
pub unsafe fn map<A: Element, D: Element>(dst: *mut D, a: *const A, n: usize, f: impl Fn(F32s) -> F32s) {
    for i in (0..n).step_by(LANES) {
        store_part(dst.add(i), f(load_part(a.add(i), n - i)), n - i);
    }
}

/// `dst[i] = f(a[i], b[i])`; `dst` may be either.
#[inline(always)]
pub unsafe fn zip<A: Element, B: Element, D: Element>(
    dst: *mut D,
    a: *const A,
    b: *const B,
    n: usize,
    f: impl Fn(F32s, F32s) -> F32s,
) {
    for i in (0..n).step_by(LANES) {
        let count = n - i;
        store_part(dst.add(i), f(load_part(a.add(i), count), load_part(b.add(i), count)), count);
    }
}

/// Sum of `f(i, count)` in f64, where `f` gives the lanes of elements `i .. i + count`, the others zero.
/// The order of additions depends on `n` only.
#[inline(always)]
pub unsafe fn sum_f64(n: usize, f: impl Fn(usize, usize) -> F32s) -> f64 {
    sum_lanes_f64(n, |i, count| F64s::from(f(i, count)))
}

/// Sum in f64 of products that are exact in f64, of the lanes that `f` gives; order as [`sum_f64`].
#[inline(always)]
pub unsafe fn dot_f64(n: usize, f: impl Fn(usize, usize) -> (F32s, F32s)) -> f64 {
    sum_lanes_f64(n, |i, count| {
        let (a, b) = f(i, count);
        F64s::from(a).mul(F64s::from(b))
    })
}

/// Sum of squares in f64.
#[inline(always)]
pub unsafe fn sum_squares<T: Element>(x: *const T, n: usize) -> f64 {
    dot_f64(n, |i, count| {
        let v = load_part(x.add(i), count);
        (v, v)
    })
}

/// Sum in f64 of magnitudes to a power of 1, 2 or 3.
#[inline(always)]
pub unsafe fn sum_powers<T: Element>(x: *const T, n: usize, power: u32) -> f64 {
    match power {
        1 => sum_f64(n, |i, count| load_part(x.add(i), count).abs()),
        2 => sum_squares(x, n),
        _ => sum_lanes_f64(n, |i, count| {
            let v = F64s::from(load_part(x.add(i), count).abs());
            v.mul(v).mul(v)
        }),
    }
}

/// Largest value, NaN if any is; minus infinity of none.
#[inline(always)]
pub unsafe fn largest<T: Element>(x: *const T, n: usize) -> f32 {
    fold(x, n, f32::NEG_INFINITY, F32s::max, max)
}

/// Smallest value, NaN if any is; infinity of none.
#[inline(always)]
pub unsafe fn smallest<T: Element>(x: *const T, n: usize) -> f32 {
    fold(x, n, f32::INFINITY, F32s::min, min)
}

/// All values through a function, which is given for lanes and for one value.
#[inline(always)]
unsafe fn fold<T: Element>(
    x: *const T,
    n: usize,
    start: f32,
    lanes: impl Fn(F32s, F32s) -> F32s,
    one: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut result = F32s::splat(start);
    let whole = n / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        result = lanes(result, T::load_lanes(x.add(i)));
    }
    (whole..n).fold(result.fold(&one), |result, i| one(result, T::load(x.add(i))))
}

/// Largest magnitude, NaN if any value is.
pub unsafe fn max_abs<T: Element>(n: usize, dst: *mut f32, src: *const T) {
    let mut best = F32s::zero();
    for i in (0..n).step_by(LANES) {
        best = best.max(load_part(src.add(i), n - i).abs());
    }
    dst.write_unaligned(best.fold(max));
}

/// `dst[i] += src[i]`.
pub unsafe fn accumulate<D: Element, S: Element>(n: Range<usize>, dst: *mut D, src: *const S) {
    let (dst, src) = (dst.add(n.start), src.add(n.start));
    zip(dst, dst as *const D, src, n.len(), |a, b| a + b);
}

/// `dst[i] = src[i] * factor`; `dst` may be `src`.
pub unsafe fn scale<T: Element>(n: Range<usize>, factor: f32, dst: *mut T, src: *const T) {
    scale_row(n.len(), factor, dst.add(n.start), src.add(n.start));
}

/// Not inlined, as several kernels would hold it.
#[inline(never)]
pub unsafe fn scale_row<T: Element>(n: usize, factor: f32, dst: *mut T, src: *const T) {
    let factor = F32s::splat(factor);
    map(dst, src, n, |v| v * factor);
}

/// The same with a factor in memory.
pub unsafe fn scale_by<T: Element>(n: Range<usize>, dst: *mut T, src: *const T, factor: *const f32) {
    let factor = factor.read_unaligned();
    if factor != 1.0 || !core::ptr::eq(dst, src) {
        scale(n, factor, dst, src);
    }
}

unsafe fn fill_with<V: Copy>(dst: *mut V, n: Range<usize>, value: V) {
    for i in n {
        dst.add(i).write_unaligned(value);
    }
}

/// Writes one value to places `n`; integers are rounded towards zero.
pub unsafe fn fill(dtype: u32, n: Range<usize>, value: f64, dst: *mut u8) {
    match dtype {
        F32 => fill_with(dst as *mut f32, n, value as f32),
        BF16 => fill_with(dst as *mut u16, n, Bf16::from_f32(value as f32).0),
        F16 => fill_with(dst as *mut u16, n, Half::from_f32(value as f32).0),
        I32 => fill_with(dst as *mut i32, n, value as i32),
        U8 => core::ptr::write_bytes(dst.add(n.start), value as u8, n.len()),
        I64 => fill_with(dst as *mut i64, n, value as i64),
        F64 => fill_with(dst as *mut f64, n, value),
        _ => {}
    }
}

/// `dst[i] = src[i]` between f32, bf16, f16, i32 and u8. Floats become i32 towards zero: beyond its range its ends, NaN 0. A u8 is
/// the low byte of that i32, so 300 gives 44 and -1 gives 255, as in PyTorch.
pub unsafe fn cast(dst_dtype: u32, src_dtype: u32, n: Range<usize>, dst: *mut u8, src: *const u8) {
    let (dst, src, n) = (dst.add(n.start * bytes_of(dst_dtype)), src.add(n.start * bytes_of(src_dtype)), n.len());
    match (dst_dtype, src_dtype) {
        (F32, F32) | (I32, I32) => core::ptr::copy(src, dst, n * 4),
        (BF16, BF16) | (F16, F16) => core::ptr::copy(src, dst, n * 2),
        (U8, U8) => core::ptr::copy(src, dst, n),
        (F32, BF16) => map(dst as *mut f32, src as *const Bf16, n, |v| v),
        (BF16, F32) => map(dst as *mut Bf16, src as *const f32, n, |v| v),
        (F32, F16) => map(dst as *mut f32, src as *const Half, n, |v| v),
        (F16, F32) => map(dst as *mut Half, src as *const f32, n, |v| v),
        _ => {
            for i in 0..n {
                store_number(dst_dtype, dst, i, number(src_dtype, src, i));
            }
        }
    }
}

/// An element of f32, bf16, f16, i32 or u8, all of which f64 holds exactly.
#[inline(never)]
unsafe fn number(dtype: u32, src: *const u8, i: usize) -> f64 {
    match dtype {
        F32 => (src as *const f32).add(i).read_unaligned() as f64,
        BF16 => Bf16::load((src as *const Bf16).add(i)) as f64,
        F16 => Half::load((src as *const Half).add(i)) as f64,
        I32 => (src as *const i32).add(i).read_unaligned() as f64,
        _ => *src.add(i) as f64,
    }
}

#[inline(never)]
unsafe fn store_number(dtype: u32, dst: *mut u8, i: usize, value: f64) {
    match dtype {
        F32 => (dst as *mut f32).add(i).write_unaligned(value as f32),
        BF16 => Bf16::store((dst as *mut Bf16).add(i), value as f32),
        F16 => Half::store((dst as *mut Half).add(i), value as f32),
        I32 => (dst as *mut i32).add(i).write_unaligned(value as i32),
        _ => *dst.add(i) = value as i32 as u8,
    }
}
