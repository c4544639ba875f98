//! The registers of `simd.rs` as WASM's of 128 bits. On the host, for `cargo test`, `simd_portable.rs` has functions of the names
//! of its instructions, which give the same bits.

#[cfg(not(target_arch = "wasm32"))]
use crate::simd_portable::*;
#[cfg(target_arch = "wasm32")]
use core::arch::wasm32::*;

/// f32 in a register.
pub const LANES: usize = 4;
pub type Floats = v128;
pub type Words = v128;
pub type Doubles = v128;
pub type Mask = v128;

macro_rules! renamed {
    ($($function:ident($($argument:ident),+) = $instruction:ident;)*) => { $(
        #[inline(always)]
        pub fn $function($($argument: v128),+) -> v128 {
            $instruction($($argument),+)
        }
    )* };
}
renamed! {
    add(a, b) = f32x4_add;
    sub(a, b) = f32x4_sub;
    mul(a, b) = f32x4_mul;
    div(a, b) = f32x4_div;
    max(a, b) = f32x4_max;
    min(a, b) = f32x4_min;
    abs(a) = f32x4_abs;
    sqrt(a) = f32x4_sqrt;
    nearest(a) = f32x4_nearest;
    lt(a, b) = f32x4_lt;
    le(a, b) = f32x4_le;
    ne(a, b) = f32x4_ne;
    to_int(a) = i32x4_trunc_sat_f32x4;
    add_words(a, b) = u32x4_add;
    sub_words(a, b) = u32x4_sub;
    and(a, b) = v128_and;
    or(a, b) = v128_or;
    xor(a, b) = v128_xor;
    eq(a, b) = u32x4_eq;
    signed_to_f32(a) = f32x4_convert_i32x4;
    unsigned_to_f32(a) = f32x4_convert_u32x4;
    add_doubles(a, b) = f64x2_add;
    mul_doubles(a, b) = f64x2_mul;
    sqrt_doubles(a) = f64x2_sqrt;
    widen_low(a) = f64x2_promote_low_f32x4;
}

/// `b` where `a < b`, else `a`: a NaN in `a` stays. A relaxed build compares by hand, as there LLVM makes a relaxed
/// maximum of the instruction, which may lose the NaN.
#[inline(always)]
pub fn max_of_numbers(a: v128, b: v128) -> v128 {
    if cfg!(target_feature = "relaxed-simd") {
        v128_bitselect(b, a, f32x4_lt(a, b))
    } else {
        f32x4_pmax(a, b)
    }
}

/// `b` where `b < a`, else `a`: likewise.
#[inline(always)]
pub fn min_of_numbers(a: v128, b: v128) -> v128 {
    if cfg!(target_feature = "relaxed-simd") {
        v128_bitselect(b, a, f32x4_lt(b, a))
    } else {
        f32x4_pmin(a, b)
    }
}

#[inline(always)]
pub fn madd(a: v128, b: v128, c: v128) -> v128 {
    #[cfg(target_feature = "relaxed-simd")]
    {
        f32x4_relaxed_madd(a, b, c)
    }
    #[cfg(not(target_feature = "relaxed-simd"))]
    {
        f32x4_add(f32x4_mul(a, b), c)
    }
}

#[inline(always)]
pub fn bits(a: v128) -> v128 {
    a
}
#[inline(always)]
pub fn floats(a: v128) -> v128 {
    a
}
#[inline(always)]
pub fn splat(v: f32) -> v128 {
    f32x4_splat(v)
}
#[inline(always)]
pub fn splat_double(v: f64) -> v128 {
    f64x2_splat(v)
}
#[inline(always)]
pub fn select(mask: v128, a: v128, b: v128) -> v128 {
    v128_bitselect(a, b, mask)
}
#[inline(always)]
pub fn shl(a: v128, count: u32) -> v128 {
    u32x4_shl(a, count)
}
#[inline(always)]
pub fn shr(a: v128, count: u32) -> v128 {
    u32x4_shr(a, count)
}
#[inline(always)]
pub fn sar(a: v128, count: u32) -> v128 {
    i32x4_shr(a, count)
}
/// The upper lanes move as 64 bits: LLVM takes a shuffle of floats under the widening apart.
#[inline(always)]
pub fn widen_high(a: v128) -> v128 {
    f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(a, a))
}
#[inline(always)]
pub fn doubles(a: v128) -> [f64; 2] {
    [f64x2_extract_lane::<0>(a), f64x2_extract_lane::<1>(a)]
}
#[inline(always)]
pub unsafe fn load(p: *const f32) -> v128 {
    v128_load(p as *const v128)
}
#[inline(always)]
pub unsafe fn load_splat(p: *const f32) -> v128 {
    v128_load32_splat(p as *const u32)
}
#[cfg(target_arch = "wasm32")]
#[inline(always)]
pub unsafe fn load_splats(p: *const f32) -> [v128; 4] {
    let v = load(p);
    [
        i32x4_shuffle::<0, 0, 0, 0>(v, v),
        i32x4_shuffle::<1, 1, 1, 1>(v, v),
        i32x4_shuffle::<2, 2, 2, 2>(v, v),
        i32x4_shuffle::<3, 3, 3, 3>(v, v),
    ]
}
#[inline(always)]
pub unsafe fn store(p: *mut f32, a: v128) {
    v128_store(p as *mut v128, a)
}
#[inline(always)]
pub unsafe fn load_u16(p: *const u16) -> v128 {
    u32x4_load_extend_u16x4(p)
}
#[inline(always)]
pub unsafe fn store_u16(p: *mut u16, a: v128) {
    v128_store64_lane::<0>(u16x8_narrow_i32x4(a, a), p as *mut u64)
}

/// Bits of f16 in the lower halves of lanes, widened: exponents are moved by a multiplication, which takes subnormals too. A call,
/// as is the reverse: in each loop of each kernel they would make an eighth of the module.
#[inline(never)]
pub fn widen_f16(a: v128) -> v128 {
    let magnitude = shl(and(a, u32x4_splat(0x7fff)), 13);
    let number = mul(magnitude, splat(f32::from_bits((127 + 112) << 23)));
    // What has the highest exponent is infinite, or a NaN, which becomes a quiet one.
    let special = le(splat(65536.0), number);
    let quiet = and(lt(splat(65536.0), number), u32x4_splat(1 << 22));
    let wide = or(number, and(special, or(u32x4_splat(0x7f80_0000), quiet)));
    or(wide, shl(and(a, u32x4_splat(0x8000)), 16))
}
/// The reverse, rounded to nearest even.
#[inline(never)]
pub fn narrow_f16(a: v128) -> v128 {
    let sign = and(a, u32x4_splat(0x8000_0000));
    let magnitude = xor(a, sign);
    let odd = and(shr(magnitude, 13), u32x4_splat(1));
    let rebased = sub_words(magnitude, u32x4_splat((112 << 23) - 0xfff));
    let normal = shr(add_words(rebased, odd), 13);
    // Below 2^-14, adding one half rounds to the steps of subnormals, which are then its lowest bits.
    let subnormal = sub_words(add(magnitude, splat(0.5)), splat(0.5));
    let nan = or(u32x4_splat(0x7e00), and(shr(magnitude, 13), u32x4_splat(0x3ff)));
    let finite = select(lt(magnitude, splat(f32::from_bits(113 << 23))), subnormal, normal);
    let limited = select(le(splat(65520.0), magnitude), u32x4_splat(0x7c00), finite);
    or(select(ne(a, a), nan, limited), shr(sign, 16))
}

/// There is no instruction for it.
#[inline(always)]
pub fn prefetch<T>(_p: *const T) {}
#[inline(always)]
pub fn prefetch_near<T>(_p: *const T) {}
/// An ordinary store, as there is no other.
#[inline(always)]
pub unsafe fn store_past_caches(p: *mut f32, a: Floats) {
    store(p, a)
}
#[inline(always)]
pub fn end_past_caches() {}

/// Four f32, whatever the width of other vectors.
#[derive(Clone, Copy)]
pub struct Quad(v128);

impl Quad {
    #[inline(always)]
    pub fn zero() -> Quad {
        Quad(f32x4_splat(0.0))
    }
    #[inline(always)]
    pub unsafe fn load(p: *const f32) -> Quad {
        Quad(load(p))
    }
    /// Four bf16, widened.
    #[inline(always)]
    pub unsafe fn load_bf16(p: *const u16) -> Quad {
        Quad(shl(load_u16(p), 16))
    }
    /// Four f16, widened.
    #[inline(always)]
    pub unsafe fn load_f16(p: *const u16) -> Quad {
        Quad(widen_f16(load_u16(p)))
    }
    #[inline(always)]
    pub unsafe fn store(self, p: *mut f32) {
        store(p, self.0)
    }
    /// The first two.
    #[inline(always)]
    pub unsafe fn store_half(self, p: *mut f32) {
        v128_store64_lane::<0>(self.0, p as *mut u64)
    }
    /// Rows to columns.
    #[inline(always)]
    pub fn transpose(r: [Quad; 4]) -> [Quad; 4] {
        let t0 = i32x4_shuffle::<0, 4, 1, 5>(r[0].0, r[1].0);
        let t1 = i32x4_shuffle::<2, 6, 3, 7>(r[0].0, r[1].0);
        let t2 = i32x4_shuffle::<0, 4, 1, 5>(r[2].0, r[3].0);
        let t3 = i32x4_shuffle::<2, 6, 3, 7>(r[2].0, r[3].0);
        [
            Quad(i64x2_shuffle::<0, 2>(t0, t2)),
            Quad(i64x2_shuffle::<1, 3>(t0, t2)),
            Quad(i64x2_shuffle::<0, 2>(t1, t3)),
            Quad(i64x2_shuffle::<1, 3>(t1, t3)),
        ]
    }
}
