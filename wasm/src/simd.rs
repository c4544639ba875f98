//! The few 128-bit vectors that kernels are written in: WASM's on wasm32, plain arrays elsewhere (for `cargo test`).
//!
//! Both give the same bits. Only [`F32x4::madd`] may be fused, and only in the relaxed build.

#[cfg(not(target_arch = "wasm32"))]
pub use crate::simd_portable::{F32x4, F64x2, Mask, U32x4};
#[cfg(target_arch = "wasm32")]
pub use crate::simd_wasm::{F32x4, F64x2, Mask, U32x4};

impl core::ops::Add for F32x4 {
    type Output = F32x4;
    #[inline(always)]
    fn add(self, other: F32x4) -> F32x4 {
        self.plus(other)
    }
}
impl core::ops::Sub for F32x4 {
    type Output = F32x4;
    #[inline(always)]
    fn sub(self, other: F32x4) -> F32x4 {
        self.minus(other)
    }
}
impl core::ops::Mul for F32x4 {
    type Output = F32x4;
    #[inline(always)]
    fn mul(self, other: F32x4) -> F32x4 {
        self.times(other)
    }
}
impl core::ops::Div for F32x4 {
    type Output = F32x4;
    #[inline(always)]
    fn div(self, other: F32x4) -> F32x4 {
        self.over(other)
    }
}
impl core::ops::Neg for F32x4 {
    type Output = F32x4;
    #[inline(always)]
    fn neg(self) -> F32x4 {
        self.bits().xor(U32x4::splat(0x8000_0000)).floats()
    }
}

impl F32x4 {
    /// All lanes zero.
    #[inline(always)]
    pub fn zero() -> F32x4 {
        F32x4::splat(0.0)
    }
    /// Sum of the lanes, as `(l0 + l2) + (l1 + l3)`.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        let l = self.lanes();
        (l[0] + l[2]) + (l[1] + l[3])
    }
    /// Largest lane, NaN if any is.
    #[inline(always)]
    pub fn largest(self) -> f32 {
        let l = self.lanes();
        max(max(l[0], l[2]), max(l[1], l[3]))
    }
    /// Smallest lane, NaN if any is.
    #[inline(always)]
    pub fn smallest(self) -> f32 {
        let l = self.lanes();
        min(min(l[0], l[2]), min(l[1], l[3]))
    }
    /// Lanes that are NaN.
    #[inline(always)]
    pub fn is_nan(self) -> Mask {
        self.ne(self)
    }
    /// Each lane through a scalar function.
    #[inline(always)]
    pub fn each(self, f: impl Fn(f32) -> f32) -> F32x4 {
        let l = self.lanes();
        F32x4::from_lanes([f(l[0]), f(l[1]), f(l[2]), f(l[3])])
    }
}

impl F64x2 {
    /// Sum of the two lanes.
    #[inline(always)]
    pub fn sum(self) -> f64 {
        let l = self.lanes();
        l[0] + l[1]
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
