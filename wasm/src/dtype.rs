//! Element types and their codes (`DType.code` in `src/dtype.ts`).
//!
//! Kernels are written once over [`Element`]: values are widened to f32 on load and rounded once, to nearest even,
//! on store.
use crate::simd::{F32x4, U32x4};

/// Codes of the dtypes, as kernel arguments.
pub const F32: u32 = 0;
pub const BF16: u32 = 1;
pub const I32: u32 = 2;
pub const U8: u32 = 3;
pub const I64: u32 = 4;
pub const F64: u32 = 5;

/// A storage type of floating-point tensors.
pub trait Element: Copy + 'static {
    /// Storage holds an f32 unchanged.
    const IS_F32: bool;
    /// Reads one value.
    unsafe fn load(p: *const Self) -> f32;
    /// Writes one value, rounded.
    unsafe fn store(p: *mut Self, value: f32);
    /// Reads four neighbors.
    unsafe fn load4(p: *const Self) -> F32x4;
    /// Writes four neighbors, rounded.
    unsafe fn store4(p: *mut Self, value: F32x4);
    /// The value that a store followed by a load gives.
    fn round4(value: F32x4) -> F32x4;
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

/// Bits of four bf16, each in the lower half of a lane.
#[inline(always)]
fn round_bits(value: F32x4) -> U32x4 {
    let bits = value.bits();
    let upper = bits.shr::<16>();
    let rounded = bits.add(U32x4::splat(0x7fff)).add(upper.and(U32x4::splat(1))).shr::<16>();
    value.ne(value).select(upper.or(U32x4::splat(0x40)).floats(), rounded.floats()).bits()
}

impl Element for f32 {
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
    unsafe fn load4(p: *const f32) -> F32x4 {
        F32x4::load(p)
    }
    #[inline(always)]
    unsafe fn store4(p: *mut f32, value: F32x4) {
        value.store(p)
    }
    #[inline(always)]
    fn round4(value: F32x4) -> F32x4 {
        value
    }
}

impl Element for Bf16 {
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
    unsafe fn load4(p: *const Bf16) -> F32x4 {
        U32x4::load_u16(p as *const u16).shl::<16>().floats()
    }
    #[inline(always)]
    unsafe fn store4(p: *mut Bf16, value: F32x4) {
        round_bits(value).store_u16(p as *mut u16)
    }
    #[inline(always)]
    fn round4(value: F32x4) -> F32x4 {
        round_bits(value).shl::<16>().floats()
    }
}

/// Loads the first `count` (1 to 4) lanes, the rest zero.
#[inline(always)]
pub unsafe fn load_part<T: Element>(p: *const T, count: usize) -> F32x4 {
    if count >= 4 {
        return T::load4(p);
    }
    let mut lanes = [0.0; 4];
    lanes[0] = T::load(p);
    if count > 1 {
        lanes[1] = T::load(p.add(1));
    }
    if count > 2 {
        lanes[2] = T::load(p.add(2));
    }
    F32x4::from_lanes(lanes)
}

/// Stores the first `count` (1 to 4) lanes.
#[inline(always)]
pub unsafe fn store_part<T: Element>(p: *mut T, value: F32x4, count: usize) {
    if count >= 4 {
        return T::store4(p, value);
    }
    let lanes = value.lanes();
    T::store(p, lanes[0]);
    if count > 1 {
        T::store(p.add(1), lanes[1]);
    }
    if count > 2 {
        T::store(p.add(2), lanes[2]);
    }
}

/// Runs `$body` with `$T` as the element type of a dtype code.
#[macro_export]
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        if $dtype == $crate::dtype::BF16 {
            type $T = $crate::dtype::Bf16;
            $body
        } else {
            type $T = f32;
            $body
        }
    };
}
