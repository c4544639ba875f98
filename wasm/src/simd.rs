//! The few vectors that kernels are written in: of 4 lanes over the instructions of WASM (`simd_wasm.rs`) and NEON
//! (`simd_neon.rs`), of 8 and 16 over those of AVX2 and AVX-512 (`simd_x86.rs`), which this file takes under one set of names.
//!
//! Only [`F32s::madd`] may be fused, and only in the relaxed build and the native ones. All else gives the same bits in every
//! build, sums over lanes too: they are kept in [`SUM_LANES`] lanes whatever a vector's width.

#[cfg(target_arch = "aarch64")]
use crate::simd_neon as registers;
#[cfg(not(any(target_arch = "aarch64", target_feature = "avx2")))]
use crate::simd_wasm as registers;
#[cfg(target_feature = "avx2")]
use crate::simd_x86 as registers;

#[cfg(feature = "native")]
pub use registers::copy_line;
pub use registers::{end_past_caches, prefetch, prefetch_near, Quad, LANES};

/// Lanes of f32.
#[derive(Clone, Copy)]
pub struct F32s(registers::Floats);
/// Lanes of u32.
#[derive(Clone, Copy)]
pub struct U32s(registers::Words);
/// Lanes of all ones or all zeros.
#[derive(Clone, Copy)]
pub struct Mask(registers::Mask);
/// Lanes of f64: the lower half, and the upper one.
#[derive(Clone, Copy)]
pub struct F64s(registers::Doubles, registers::Doubles);

/// Methods `name(others) -> Type = function` of a vector, each one function of its and the others' registers.
macro_rules! methods {
    ($Vector:ident { $($(#[$doc:meta])* $name:ident($($other:ident),*) -> $Out:ident = $function:ident;)* }) => {
        impl $Vector { $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name(self, $($other: $Vector),*) -> $Out {
                $Out(registers::$function(self.0, $($other.0),*))
            }
        )* }
    };
}

methods!(F32s {
    /// Lane-wise larger, NaN if one is.
    max(other) -> F32s = max;
    /// Lane-wise smaller, NaN if one is.
    min(other) -> F32s = min;
    /// Lane-wise larger; a NaN among `other` is left out, one among `self` stays. Much cheaper than [`F32s::max`].
    max_of_numbers(other) -> F32s = max_of_numbers;
    /// Lane-wise smaller, likewise.
    min_of_numbers(other) -> F32s = min_of_numbers;
    abs() -> F32s = abs;
    sqrt() -> F32s = sqrt;
    /// Nearest integer, ties to even.
    nearest() -> F32s = nearest;
    lt(other) -> Mask = lt;
    le(other) -> Mask = le;
    ne(other) -> Mask = ne;
    /// As signed integers, truncated; of lanes that fit.
    to_int() -> U32s = to_int;
    /// The same bits as integers.
    bits() -> U32s = bits;
    /// The bits of the nearest f16, each in the lower half of a lane.
    narrow_f16() -> U32s = narrow_f16;
    /// `self * b + c`, fused where the build and the engine fuse it.
    madd(b, c) -> F32s = madd;
});

methods!(U32s {
    add(other) -> U32s = add_words;
    sub(other) -> U32s = sub_words;
    and(other) -> U32s = and;
    or(other) -> U32s = or;
    xor(other) -> U32s = xor;
    eq(other) -> Mask = eq;
    /// The value of each lane, taken as signed.
    signed_to_f32() -> F32s = signed_to_f32;
    /// The value of each lane, taken as unsigned.
    unsigned_to_f32() -> F32s = unsigned_to_f32;
    /// The same bits as floats.
    floats() -> F32s = floats;
    /// The values of f16 in the lower halves of lanes.
    widen_f16() -> F32s = widen_f16;
});

macro_rules! operators {
    ($($Operator:ident::$method:ident = $function:ident;)*) => { $(
        impl core::ops::$Operator for F32s {
            type Output = F32s;
            #[inline(always)]
            fn $method(self, other: F32s) -> F32s {
                F32s(registers::$function(self.0, other.0))
            }
        }
    )* };
}
operators! {
    Add::add = add;
    Sub::sub = sub;
    Mul::mul = mul;
    Div::div = div;
}
impl core::ops::Neg for F32s {
    type Output = F32s;
    #[inline(always)]
    fn neg(self) -> F32s {
        self.bits().xor(U32s::splat(0x8000_0000)).floats()
    }
}

impl F32s {
    #[inline(always)]
    pub fn splat(v: f32) -> F32s {
        F32s(registers::splat(v))
    }
    /// All lanes zero.
    #[inline(always)]
    pub fn zero() -> F32s {
        F32s::splat(0.0)
    }
    #[inline(always)]
    pub fn from_lanes(lanes: [f32; LANES]) -> F32s {
        unsafe { F32s::load(lanes.as_ptr()) }
    }
    #[inline(always)]
    pub fn lanes(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes
    }
    /// Neighbors, wherever they lie.
    #[inline(always)]
    pub unsafe fn load(p: *const f32) -> F32s {
        F32s(registers::load(p))
    }
    /// One value in all lanes.
    #[inline(always)]
    pub unsafe fn load_splat(p: *const f32) -> F32s {
        F32s(registers::load_splat(p))
    }
    /// Four neighbors, each in all lanes.
    #[cfg(any(target_arch = "aarch64", target_arch = "wasm32"))]
    #[inline(always)]
    pub unsafe fn load_splats(p: *const f32) -> [F32s; 4] {
        registers::load_splats(p).map(F32s)
    }
    /// This sum and the products of pairs of bf16, of their upper halves first; of subnormal numbers as zero.
    #[cfg(target_feature = "avx512bf16")]
    #[inline(always)]
    pub fn add_pairs(self, a: F32s, b: F32s) -> F32s {
        F32s(registers::add_pairs(self.0, a.0, b.0))
    }
    #[inline(always)]
    pub unsafe fn store(self, p: *mut f32) {
        registers::store(p, self.0)
    }
    /// The same past the caches, as far as the target can, at a place aligned as a vector is; it is there for others after
    /// [`end_past_caches`].
    #[inline(always)]
    pub unsafe fn store_past_caches(self, p: *mut f32) {
        registers::store_past_caches(p, self.0)
    }
    /// `low` where less; NaN stays.
    #[inline(always)]
    pub fn at_least(self, low: f32) -> F32s {
        self.max_of_numbers(F32s::splat(low))
    }
    /// `high` where greater; NaN stays.
    #[inline(always)]
    pub fn at_most(self, high: f32) -> F32s {
        self.min_of_numbers(F32s::splat(high))
    }
    /// The lanes through a function of two, by halves.
    #[inline(always)]
    pub fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        fold(self.lanes(), f)
    }
    /// Each lane through a scalar function.
    #[inline(always)]
    pub fn each(self, f: impl Fn(f32) -> f32) -> F32s {
        F32s::from_lanes(self.lanes().map(f))
    }
}

impl U32s {
    #[inline(always)]
    pub fn splat(v: u32) -> U32s {
        F32s::splat(f32::from_bits(v)).bits()
    }
    #[inline(always)]
    pub fn from_lanes(lanes: [u32; LANES]) -> U32s {
        F32s::from_lanes(lanes.map(f32::from_bits)).bits()
    }
    #[inline(always)]
    pub unsafe fn load_u16(p: *const u16) -> U32s {
        U32s(registers::load_u16(p))
    }
    /// Stores the lower halves, which hold all of the value.
    #[inline(always)]
    pub unsafe fn store_u16(self, p: *mut u16) {
        registers::store_u16(p, self.0)
    }
    #[inline(always)]
    pub fn shl<const N: u32>(self) -> U32s {
        U32s(registers::shl(self.0, N))
    }
    #[inline(always)]
    pub fn shr<const N: u32>(self) -> U32s {
        U32s(registers::shr(self.0, N))
    }
    /// Shift right keeping the sign.
    #[inline(always)]
    pub fn sar<const N: u32>(self) -> U32s {
        U32s(registers::sar(self.0, N))
    }
}

impl Mask {
    /// `a` where set, else `b`.
    #[inline(always)]
    pub fn select(self, a: F32s, b: F32s) -> F32s {
        F32s(registers::select(self.0, a.0, b.0))
    }
}

impl F64s {
    #[inline(always)]
    pub fn zero() -> F64s {
        F64s(registers::splat_double(0.0), registers::splat_double(0.0))
    }
    /// The same values, widened.
    #[inline(always)]
    pub fn from(v: F32s) -> F64s {
        F64s(registers::widen_low(v.0), registers::widen_high(v.0))
    }
    #[inline(always)]
    pub fn add(self, other: F64s) -> F64s {
        F64s(registers::add_doubles(self.0, other.0), registers::add_doubles(self.1, other.1))
    }
    #[inline(always)]
    pub fn mul(self, other: F64s) -> F64s {
        F64s(registers::mul_doubles(self.0, other.0), registers::mul_doubles(self.1, other.1))
    }
    #[inline(always)]
    fn sum(self) -> f64 {
        fold(registers::doubles(registers::add_doubles(self.0, self.1)), |a, b| a + b)
    }
    /// The lanes times `factor`, rounded.
    #[inline(always)]
    pub fn narrowed(self, factor: f64) -> F32s {
        let (low, high) = (registers::doubles(self.0), registers::doubles(self.1));
        let mut lanes = [0.0; LANES];
        for i in 0..LANES / 2 {
            lanes[i] = (low[i] * factor) as f32;
            lanes[i + LANES / 2] = (high[i] * factor) as f32;
        }
        F32s::from_lanes(lanes)
    }
}

/// Values through a function of two: each of the lower half with its partner in the upper half, and so on.
#[inline(always)]
fn fold<V: Copy, const N: usize>(mut values: [V; N], f: impl Fn(V, V) -> V) -> V {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            values[i] = f(values[i], values[i + half]);
        }
        half /= 2;
    }
    values[0]
}

/// Lanes that sums are kept in: element i is added to lane i mod 16, and the lanes are added by halves at the end.
pub const SUM_LANES: usize = 16;
const PARTS: usize = SUM_LANES / LANES;

/// Calls `f(part, i, count)` for the elements `i .. i + count` of `n` that the lanes of that part add.
#[inline(always)]
fn parts(n: usize, mut f: impl FnMut(usize, usize, usize)) {
    let whole = n / SUM_LANES * SUM_LANES;
    for i in (0..whole).step_by(SUM_LANES) {
        for part in 0..PARTS {
            f(part, i + part * LANES, LANES);
        }
    }
    for (part, i) in (whole..n).step_by(LANES).enumerate() {
        f(part % PARTS, i, (n - i).min(LANES));
    }
}

/// Sum in f64 of `f(i, count)`, which gives the lanes of elements `i .. i + count`, the others zero.
#[inline(always)]
pub fn sum_lanes_f64(n: usize, f: impl Fn(usize, usize) -> F64s) -> f64 {
    let mut sums = [F64s::zero(); PARTS];
    parts(n, |part, i, count| sums[part] = sums[part].add(f(i, count)));
    fold(sums, F64s::add).sum()
}

/// Sum in f32, where `f(sum, i, count)` adds elements `i .. i + count` to the lanes of a sum.
#[inline(always)]
pub fn sum_lanes(n: usize, f: impl Fn(F32s, usize, usize) -> F32s) -> f32 {
    let mut sums = [F32s::zero(); PARTS];
    parts(n, |part, i, count| sums[part] = f(sums[part], i, count));
    fold(sums, |a, b| a + b).fold(|a, b| a + b)
}

/// Square root, rounded once: the instruction, which libm does not take.
#[inline(always)]
pub fn sqrt(x: f64) -> f64 {
    registers::doubles(registers::sqrt_doubles(registers::splat_double(x)))[0]
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
