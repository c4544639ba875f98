//! Element types and their codes (`DType.code` in `src/dtype.ts`).
//!
//! Kernels are written once over [`Element`]: values are widened to f32 on load and rounded once, to nearest even,
//! on store.
use crate::factors::{Factors, Widened};
use crate::simd::{F32s, Quad, U32s, LANES};

/// Codes of the dtypes, as kernel arguments.
pub const F32: u32 = 0;
pub const BF16: u32 = 1;
pub const I32: u32 = 2;
pub const U8: u32 = 3;
pub const I64: u32 = 4;
pub const F64: u32 = 5;
pub const F16: u32 = 6;

/// Bytes of an element.
pub fn bytes_of(dtype: u32) -> usize {
    match dtype {
        U8 => 1,
        BF16 | F16 => 2,
        I64 | F64 => 8,
        _ => 4,
    }
}

/// A storage type of floating-point tensors.
pub trait Element: Copy + 'static {
    /// Storage holds an f32 unchanged.
    const IS_F32: bool;
    /// What a product of such values multiplies.
    type Factors: Factors<Self>;
    /// Reads one value.
    unsafe fn load(p: *const Self) -> f32;
    /// Writes one value, rounded.
    unsafe fn store(p: *mut Self, value: f32);
    /// Reads as many neighbors as a vector has lanes.
    unsafe fn load_lanes(p: *const Self) -> F32s;
    /// Writes as many, rounded.
    unsafe fn store_lanes(p: *mut Self, value: F32s);
    /// Reads four neighbors.
    unsafe fn load_quad(p: *const Self) -> Quad;
    /// The value that a store followed by a load gives.
    fn round_lanes(value: F32s) -> F32s;
}

/// The upper half of an f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// Nearest bf16, ties to even; a NaN stays a (quiet) NaN.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Bf16 {
        let bits = value.to_bits();
        if value != value {
            return Bf16(((bits >> 16) | 0x40) as u16);
        }
        Bf16((bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }

    /// The value, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
}

/// Bits of bf16 lanes, each in the lower half of a lane.
#[inline(always)]
fn round_bits(value: F32s) -> U32s {
    let bits = value.bits();
    let upper = bits.shr::<16>();
    let rounded = bits.add(U32s::splat(0x7fff)).add(upper.and(U32s::splat(1))).shr::<16>();
    value.ne(value).select(upper.or(U32s::splat(0x40)).floats(), rounded.floats()).bits()
}

/// IEEE 754 binary16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Half(pub u16);

impl Half {
    /// Nearest f16, ties to even: beyond 65504 infinity, below 2^-14 a subnormal; a NaN stays a (quiet) NaN.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Half {
        Half(F32s::splat(value).narrow_f16().floats().lanes()[0].to_bits() as u16)
    }

    /// The value, exactly.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        U32s::splat(self.0 as u32).widen_f16().lanes()[0]
    }
}

impl Element for f32 {
    type Factors = Widened;
    const IS_F32: bool = true;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> f32 {
        p.read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, value: f32) {
        p.write_unaligned(value)
    }
    #[inline(always)]
    unsafe fn load_lanes(p: *const f32) -> F32s {
        F32s::load(p)
    }
    #[inline(always)]
    unsafe fn store_lanes(p: *mut f32, value: F32s) {
        value.store(p)
    }
    #[inline(always)]
    unsafe fn load_quad(p: *const f32) -> Quad {
        Quad::load(p)
    }
    #[inline(always)]
    fn round_lanes(value: F32s) -> F32s {
        value
    }
}

impl Element for Bf16 {
    #[cfg(target_feature = "avx512bf16")]
    type Factors = crate::factors::Pairs;
    #[cfg(not(target_feature = "avx512bf16"))]
    type Factors = Widened;
    const IS_F32: bool = false;
    #[inline(always)]
    unsafe fn load(p: *const Bf16) -> f32 {
        p.read_unaligned().to_f32()
    }
    #[inline(always)]
    unsafe fn store(p: *mut Bf16, value: f32) {
        p.write_unaligned(Bf16::from_f32(value))
    }
    #[inline(always)]
    unsafe fn load_lanes(p: *const Bf16) -> F32s {
        U32s::load_u16(p as *const u16).shl::<16>().floats()
    }
    #[inline(always)]
    unsafe fn store_lanes(p: *mut Bf16, value: F32s) {
        round_bits(value).store_u16(p as *mut u16)
    }
    #[inline(always)]
    unsafe fn load_quad(p: *const Bf16) -> Quad {
        Quad::load_bf16(p as *const u16)
    }
    #[inline(always)]
    fn round_lanes(value: F32s) -> F32s {
        round_bits(value).shl::<16>().floats()
    }
}

impl Element for Half {
    type Factors = Widened;
    const IS_F32: bool = false;
    #[inline(always)]
    unsafe fn load(p: *const Half) -> f32 {
        p.read_unaligned().to_f32()
    }
    #[inline(always)]
    unsafe fn store(p: *mut Half, value: f32) {
        p.write_unaligned(Half::from_f32(value))
    }
    #[inline(always)]
    unsafe fn load_lanes(p: *const Half) -> F32s {
        U32s::load_u16(p as *const u16).widen_f16()
    }
    #[inline(always)]
    unsafe fn store_lanes(p: *mut Half, value: F32s) {
        value.narrow_f16().store_u16(p as *mut u16)
    }
    #[inline(always)]
    unsafe fn load_quad(p: *const Half) -> Quad {
        Quad::load_f16(p as *const u16)
    }
    #[inline(always)]
    fn round_lanes(value: F32s) -> F32s {
        value.narrow_f16().widen_f16()
    }
}

/// Loads the first `count` (at least 1) lanes, the rest zero.
#[inline(always)]
pub unsafe fn load_part<T: Element>(p: *const T, count: usize) -> F32s {
    if count >= LANES {
        return T::load_lanes(p);
    }
    load_tail(p, count)
}

/// Not inlined, as every loop would hold it.
#[cold]
#[inline(never)]
unsafe fn load_tail<T: Element>(p: *const T, count: usize) -> F32s {
    let mut lanes = [0.0; LANES];
    for i in 0..LANES {
        if i < count {
            lanes[i] = T::load(p.add(i));
        }
    }
    F32s::from_lanes(lanes)
}

/// Stores the first `count` (at least 1) lanes.
#[inline(always)]
pub unsafe fn store_part<T: Element>(p: *mut T, value: F32s, count: usize) {
    if count >= LANES {
        return T::store_lanes(p, value);
    }
    store_tail(p, value, count)
}

/// Not inlined, as every loop would hold it.
#[cold]
#[inline(never)]
unsafe fn store_tail<T: Element>(p: *mut T, value: F32s, count: usize) {
    let lanes = value.lanes();
    for i in 0..LANES {
        if i < count {
            T::store(p.add(i), lanes[i]);
        }
    }
}

/// Runs `$body` with `$T` as the element type of a dtype code.
#[macro_export]
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        if $dtype == $crate::dtype::BF16 {
            type $T = $crate::dtype::Bf16;
            $body
        } else if $dtype == $crate::dtype::F16 {
            type $T = $crate::dtype::Half;
            $body
        } else {
            type $T = f32;
            $body
        }
    };
}

/// The same with `$D` as the type of a second code, which is the first code or f32's.
#[macro_export]
macro_rules! with_wider {
    ($dtype:expr, $wide:expr, $T:ident, $D:ident => $body:expr) => {
        $crate::with_float!($dtype, $T => if $wide == $crate::dtype::F32 {
            type $D = f32;
            $body
        } else {
            type $D = $T;
            $body
        })
    };
}
