//! The few 128-bit vectors that kernels are written in, over the instructions of WASM. On the host, for `cargo test`,
//! `simd_portable.rs` has functions of the same names, which give the same bits.
//!
//! Only [`F32x4::madd`] may be fused, and only in the relaxed build.

#[cfg(not(target_arch = "wasm32"))]
use crate::simd_portable::*;
#[cfg(target_arch = "wasm32")]
use core::arch::wasm32::*;

/// Four f32.
#[derive(Clone, Copy)]
pub struct F32x4(v128);
/// Four u32.
#[derive(Clone, Copy)]
pub struct U32x4(v128);
/// Four lanes of all ones or all zeros.
#[derive(Clone, Copy)]
pub struct Mask(v128);
/// Four f64: the first two, and the others.
#[derive(Clone, Copy)]
pub struct F64x4(v128, v128);

/// Methods `name(others) -> Type = function` of a vector, each one function of its and the others' registers.
macro_rules! methods {
    ($Vector:ident { $($(#[$doc:meta])* $name:ident($($other:ident),*) -> $Out:ident = $function:ident;)* }) => {
        impl $Vector { $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name(self, $($other: $Vector),*) -> $Out {
                $Out($function(self.0, $($other.0),*))
            }
        )* }
    };
}

methods!(F32x4 {
    /// Lane-wise larger, NaN if one is.
    max(other) -> F32x4 = f32x4_max;
    /// Lane-wise smaller, NaN if one is.
    min(other) -> F32x4 = f32x4_min;
    /// Lane-wise larger; a NaN among `other` is left out, one among `self` stays. Much cheaper than [`F32x4::max`].
    max_of_numbers(other) -> F32x4 = pmax;
    abs() -> F32x4 = f32x4_abs;
    sqrt() -> F32x4 = f32x4_sqrt;
    /// Nearest integer, ties to even.
    nearest() -> F32x4 = f32x4_nearest;
    lt(other) -> Mask = f32x4_lt;
    le(other) -> Mask = f32x4_le;
    ne(other) -> Mask = f32x4_ne;
    /// As signed integers, truncated; NaN gives 0, too large saturates.
    to_int() -> U32x4 = i32x4_trunc_sat_f32x4;
});

methods!(U32x4 {
    add(other) -> U32x4 = u32x4_add;
    sub(other) -> U32x4 = u32x4_sub;
    and(other) -> U32x4 = v128_and;
    or(other) -> U32x4 = v128_or;
    xor(other) -> U32x4 = v128_xor;
    eq(other) -> Mask = u32x4_eq;
    /// The value of each lane, taken as signed.
    signed_to_f32() -> F32x4 = f32x4_convert_i32x4;
    /// The value of each lane, taken as unsigned.
    unsigned_to_f32() -> F32x4 = f32x4_convert_u32x4;
});

/// `b` where `a < b`, else `a`: a NaN in `a` stays. A relaxed build compares by hand, as there LLVM makes a relaxed
/// maximum of the instruction, which may lose the NaN.
#[inline(always)]
fn pmax(a: v128, b: v128) -> v128 {
    if cfg!(target_feature = "relaxed-simd") {
        v128_bitselect(b, a, f32x4_lt(a, b))
    } else {
        f32x4_pmax(a, b)
    }
}

/// `b` where `b < a`, else `a`: likewise.
#[inline(always)]
fn pmin(a: v128, b: v128) -> v128 {
    if cfg!(target_feature = "relaxed-simd") {
        v128_bitselect(b, a, f32x4_lt(b, a))
    } else {
        f32x4_pmin(a, b)
    }
}

macro_rules! operators {
    ($($Operator:ident::$method:ident = $function:ident;)*) => { $(
        impl core::ops::$Operator for F32x4 {
            type Output = F32x4;
            #[inline(always)]
            fn $method(self, other: F32x4) -> F32x4 {
                F32x4($function(self.0, other.0))
            }
        }
    )* };
}
operators! {
    Add::add = f32x4_add;
    Sub::sub = f32x4_sub;
    Mul::mul = f32x4_mul;
    Div::div = f32x4_div;
}
impl core::ops::Neg for F32x4 {
    type Output = F32x4;
    #[inline(always)]
    fn neg(self) -> F32x4 {
        self.bits().xor(U32x4::splat(0x8000_0000)).floats()
    }
}

impl F32x4 {
    #[inline(always)]
    pub fn splat(v: f32) -> F32x4 {
        F32x4(f32x4_splat(v))
    }
    /// All lanes zero.
    #[inline(always)]
    pub fn zero() -> F32x4 {
        F32x4::splat(0.0)
    }
    #[inline(always)]
    pub fn from_lanes(l: [f32; 4]) -> F32x4 {
        F32x4(f32x4(l[0], l[1], l[2], l[3]))
    }
    #[inline(always)]
    pub fn lanes(self) -> [f32; 4] {
        [
            f32x4_extract_lane::<0>(self.0),
            f32x4_extract_lane::<1>(self.0),
            f32x4_extract_lane::<2>(self.0),
            f32x4_extract_lane::<3>(self.0),
        ]
    }
    /// Four neighbors, wherever they lie.
    #[inline(always)]
    pub unsafe fn load(p: *const f32) -> F32x4 {
        F32x4(v128_load(p as *const v128))
    }
    /// One value in all lanes.
    #[inline(always)]
    pub unsafe fn load_splat(p: *const f32) -> F32x4 {
        F32x4(v128_load32_splat(p as *const u32))
    }
    #[inline(always)]
    pub unsafe fn store(self, p: *mut f32) {
        v128_store(p as *mut v128, self.0)
    }
    /// `self * b + c`, fused where the relaxed build and the engine fuse it.
    #[inline(always)]
    pub fn madd(self, b: F32x4, c: F32x4) -> F32x4 {
        #[cfg(target_feature = "relaxed-simd")]
        {
            F32x4(f32x4_relaxed_madd(self.0, b.0, c.0))
        }
        #[cfg(not(target_feature = "relaxed-simd"))]
        {
            self * b + c
        }
    }
    /// `low` where less; NaN stays.
    #[inline(always)]
    pub fn at_least(self, low: f32) -> F32x4 {
        self.max_of_numbers(F32x4::splat(low))
    }
    /// `high` where greater; NaN stays.
    #[inline(always)]
    pub fn at_most(self, high: f32) -> F32x4 {
        F32x4(pmin(self.0, f32x4_splat(high)))
    }
    /// Rows to columns.
    #[inline(always)]
    pub fn transpose(r: [F32x4; 4]) -> [F32x4; 4] {
        let t0 = i32x4_shuffle::<0, 4, 1, 5>(r[0].0, r[1].0);
        let t1 = i32x4_shuffle::<2, 6, 3, 7>(r[0].0, r[1].0);
        let t2 = i32x4_shuffle::<0, 4, 1, 5>(r[2].0, r[3].0);
        let t3 = i32x4_shuffle::<2, 6, 3, 7>(r[2].0, r[3].0);
        [
            F32x4(i64x2_shuffle::<0, 2>(t0, t2)),
            F32x4(i64x2_shuffle::<1, 3>(t0, t2)),
            F32x4(i64x2_shuffle::<0, 2>(t1, t3)),
            F32x4(i64x2_shuffle::<1, 3>(t1, t3)),
        ]
    }
    /// Sum of the lanes, as `(l0 + l2) + (l1 + l3)`.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        self.fold(|a, b| a + b)
    }
    /// The lanes through a function of two.
    #[inline(always)]
    pub fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let l = self.lanes();
        f(f(l[0], l[2]), f(l[1], l[3]))
    }
    /// The same bits as integers.
    #[inline(always)]
    pub fn bits(self) -> U32x4 {
        U32x4(self.0)
    }
    /// Each lane through a scalar function.
    #[inline(always)]
    pub fn each(self, f: impl Fn(f32) -> f32) -> F32x4 {
        F32x4::from_lanes(self.lanes().map(f))
    }
}

impl U32x4 {
    #[inline(always)]
    pub fn splat(v: u32) -> U32x4 {
        U32x4(u32x4_splat(v))
    }
    #[inline(always)]
    pub fn from_lanes(l: [u32; 4]) -> U32x4 {
        U32x4(u32x4(l[0], l[1], l[2], l[3]))
    }
    #[inline(always)]
    pub unsafe fn load_u16(p: *const u16) -> U32x4 {
        U32x4(u32x4_load_extend_u16x4(p))
    }
    /// Stores the lower halves, which hold all of the value.
    #[inline(always)]
    pub unsafe fn store_u16(self, p: *mut u16) {
        v128_store64_lane::<0>(u16x8_narrow_i32x4(self.0, self.0), p as *mut u64)
    }
    #[inline(always)]
    pub fn shl<const N: u32>(self) -> U32x4 {
        U32x4(u32x4_shl(self.0, N))
    }
    #[inline(always)]
    pub fn shr<const N: u32>(self) -> U32x4 {
        U32x4(u32x4_shr(self.0, N))
    }
    /// Shift right keeping the sign.
    #[inline(always)]
    pub fn sar<const N: u32>(self) -> U32x4 {
        U32x4(i32x4_shr(self.0, N))
    }
    /// The same bits as floats.
    #[inline(always)]
    pub fn floats(self) -> F32x4 {
        F32x4(self.0)
    }
}

impl Mask {
    /// `a` where set, else `b`.
    #[inline(always)]
    pub fn select(self, a: F32x4, b: F32x4) -> F32x4 {
        F32x4(v128_bitselect(a.0, b.0, self.0))
    }
}

impl F64x4 {
    #[inline(always)]
    pub fn zero() -> F64x4 {
        F64x4(f64x2_splat(0.0), f64x2_splat(0.0))
    }
    /// The same values, widened. The upper ones move as 64 bits: LLVM takes a shuffle of floats under it apart.
    #[inline(always)]
    pub fn from(v: F32x4) -> F64x4 {
        F64x4(f64x2_promote_low_f32x4(v.0), f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(v.0, v.0)))
    }
    #[inline(always)]
    pub fn add(self, other: F64x4) -> F64x4 {
        F64x4(f64x2_add(self.0, other.0), f64x2_add(self.1, other.1))
    }
    #[inline(always)]
    pub fn mul(self, other: F64x4) -> F64x4 {
        F64x4(f64x2_mul(self.0, other.0), f64x2_mul(self.1, other.1))
    }
    /// Sum of the lanes, as `(l0 + l2) + (l1 + l3)`.
    #[inline(always)]
    pub fn sum(self) -> f64 {
        let sums = f64x2_add(self.0, self.1);
        f64x2_extract_lane::<0>(sums) + f64x2_extract_lane::<1>(sums)
    }
    /// The lanes times `factor`, rounded.
    #[inline(always)]
    pub fn narrowed(self, factor: f64) -> F32x4 {
        let lanes = [
            f64x2_extract_lane::<0>(self.0),
            f64x2_extract_lane::<1>(self.0),
            f64x2_extract_lane::<0>(self.1),
            f64x2_extract_lane::<1>(self.1),
        ];
        F32x4::from_lanes(lanes.map(|lane| (lane * factor) as f32))
    }
}

/// The larger of two, NaN if one is.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    if a != a || a > b {
        a
    } else {
        b
    }
}

/// The smaller of two, NaN if one is.
#[inline(always)]
pub fn min(a: f32, b: f32) -> f32 {
    if a != a || a < b {
        a
    } else {
        b
    }
}
