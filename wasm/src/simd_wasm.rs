//! Vectors as WASM's `v128`.
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
/// Two f64.
#[derive(Clone, Copy)]
pub struct F64x2(v128);

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

impl F32x4 {
    #[inline(always)]
    pub fn splat(v: f32) -> F32x4 {
        F32x4(f32x4_splat(v))
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
    /// # Safety
    /// 16 bytes from `p` on are readable; no alignment is needed.
    #[inline(always)]
    pub unsafe fn load(p: *const f32) -> F32x4 {
        F32x4(v128_load(p as *const v128))
    }
    /// # Safety
    /// `p` is readable.
    #[inline(always)]
    pub unsafe fn load_splat(p: *const f32) -> F32x4 {
        F32x4(v128_load32_splat(p as *const u32))
    }
    /// # Safety
    /// 16 bytes from `p` on are writable; no alignment is needed.
    #[inline(always)]
    pub unsafe fn store(self, p: *mut f32) {
        v128_store(p as *mut v128, self.0)
    }
    #[inline(always)]
    pub fn plus(self, o: F32x4) -> F32x4 {
        F32x4(f32x4_add(self.0, o.0))
    }
    #[inline(always)]
    pub fn minus(self, o: F32x4) -> F32x4 {
        F32x4(f32x4_sub(self.0, o.0))
    }
    #[inline(always)]
    pub fn times(self, o: F32x4) -> F32x4 {
        F32x4(f32x4_mul(self.0, o.0))
    }
    #[inline(always)]
    pub fn over(self, o: F32x4) -> F32x4 {
        F32x4(f32x4_div(self.0, o.0))
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
            F32x4(f32x4_add(f32x4_mul(self.0, b.0), c.0))
        }
    }
    /// Lane-wise larger, NaN if one is.
    #[inline(always)]
    pub fn max(self, o: F32x4) -> F32x4 {
        F32x4(f32x4_max(self.0, o.0))
    }
    /// Lane-wise smaller, NaN if one is.
    #[inline(always)]
    pub fn min(self, o: F32x4) -> F32x4 {
        F32x4(f32x4_min(self.0, o.0))
    }
    /// Lane-wise larger; a NaN among `o` is left out, one among `self` stays. Much cheaper than [`F32x4::max`].
    #[inline(always)]
    pub fn max_of_numbers(self, o: F32x4) -> F32x4 {
        F32x4(pmax(self.0, o.0))
    }
    /// `low` where less; NaN stays.
    #[inline(always)]
    pub fn at_least(self, low: f32) -> F32x4 {
        F32x4(pmax(self.0, f32x4_splat(low)))
    }
    /// `high` where greater; NaN stays.
    #[inline(always)]
    pub fn at_most(self, high: f32) -> F32x4 {
        F32x4(pmin(self.0, f32x4_splat(high)))
    }
    #[inline(always)]
    pub fn abs(self) -> F32x4 {
        F32x4(f32x4_abs(self.0))
    }
    #[inline(always)]
    pub fn sqrt(self) -> F32x4 {
        F32x4(f32x4_sqrt(self.0))
    }
    /// Nearest integer, ties to even.
    #[inline(always)]
    pub fn nearest(self) -> F32x4 {
        F32x4(f32x4_nearest(self.0))
    }
    #[inline(always)]
    pub fn lt(self, o: F32x4) -> Mask {
        Mask(f32x4_lt(self.0, o.0))
    }
    #[inline(always)]
    pub fn le(self, o: F32x4) -> Mask {
        Mask(f32x4_le(self.0, o.0))
    }
    #[inline(always)]
    pub fn ne(self, o: F32x4) -> Mask {
        Mask(f32x4_ne(self.0, o.0))
    }
    #[inline(always)]
    pub fn bits(self) -> U32x4 {
        U32x4(self.0)
    }
    /// As signed integers, truncated; NaN gives 0, too large saturates.
    #[inline(always)]
    pub fn to_int(self) -> U32x4 {
        U32x4(i32x4_trunc_sat_f32x4(self.0))
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
    /// # Safety
    /// 8 bytes from `p` on are readable.
    #[inline(always)]
    pub unsafe fn load_u16(p: *const u16) -> U32x4 {
        U32x4(u32x4_load_extend_u16x4(p))
    }
    /// Stores the lower halves, which hold all of the value.
    ///
    /// # Safety
    /// 8 bytes from `p` on are writable.
    #[inline(always)]
    pub unsafe fn store_u16(self, p: *mut u16) {
        v128_store64_lane::<0>(u16x8_narrow_i32x4(self.0, self.0), p as *mut u64)
    }
    #[inline(always)]
    pub fn add(self, o: U32x4) -> U32x4 {
        U32x4(u32x4_add(self.0, o.0))
    }
    #[inline(always)]
    pub fn sub(self, o: U32x4) -> U32x4 {
        U32x4(u32x4_sub(self.0, o.0))
    }
    #[inline(always)]
    pub fn and(self, o: U32x4) -> U32x4 {
        U32x4(v128_and(self.0, o.0))
    }
    #[inline(always)]
    pub fn or(self, o: U32x4) -> U32x4 {
        U32x4(v128_or(self.0, o.0))
    }
    #[inline(always)]
    pub fn xor(self, o: U32x4) -> U32x4 {
        U32x4(v128_xor(self.0, o.0))
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
    #[inline(always)]
    pub fn eq(self, o: U32x4) -> Mask {
        Mask(u32x4_eq(self.0, o.0))
    }
    /// The same bits as floats.
    #[inline(always)]
    pub fn floats(self) -> F32x4 {
        F32x4(self.0)
    }
    /// The value of each lane, taken as signed.
    #[inline(always)]
    pub fn signed_to_f32(self) -> F32x4 {
        F32x4(f32x4_convert_i32x4(self.0))
    }
    /// The value of each lane, taken as unsigned.
    #[inline(always)]
    pub fn unsigned_to_f32(self) -> F32x4 {
        F32x4(f32x4_convert_u32x4(self.0))
    }
}

impl Mask {
    /// `a` where set, else `b`.
    #[inline(always)]
    pub fn select(self, a: F32x4, b: F32x4) -> F32x4 {
        F32x4(v128_bitselect(a.0, b.0, self.0))
    }
    /// `a` where set, else `b`.
    #[inline(always)]
    pub fn pick(self, a: U32x4, b: U32x4) -> U32x4 {
        U32x4(v128_bitselect(a.0, b.0, self.0))
    }
}

impl F64x2 {
    #[inline(always)]
    pub fn splat(v: f64) -> F64x2 {
        F64x2(f64x2_splat(v))
    }
    /// Lanes 0 and 1, widened.
    #[inline(always)]
    pub fn low(v: F32x4) -> F64x2 {
        F64x2(f64x2_promote_low_f32x4(v.0))
    }
    /// Lanes 2 and 3, widened.
    #[inline(always)]
    pub fn high(v: F32x4) -> F64x2 {
        F64x2(f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(v.0, v.0)))
    }
    #[inline(always)]
    pub fn add(self, o: F64x2) -> F64x2 {
        F64x2(f64x2_add(self.0, o.0))
    }
    #[inline(always)]
    pub fn mul(self, o: F64x2) -> F64x2 {
        F64x2(f64x2_mul(self.0, o.0))
    }
    #[inline(always)]
    pub fn lanes(self) -> [f64; 2] {
        [f64x2_extract_lane::<0>(self.0), f64x2_extract_lane::<1>(self.0)]
    }
    /// # Safety
    /// 16 bytes from `p` on are readable.
    #[inline(always)]
    pub unsafe fn load(p: *const f64) -> F64x2 {
        F64x2(v128_load(p as *const v128))
    }
    /// # Safety
    /// 16 bytes from `p` on are writable.
    #[inline(always)]
    pub unsafe fn store(self, p: *mut f64) {
        v128_store(p as *mut v128, self.0)
    }
}
