//! The instructions of `core::arch::wasm32` that `simd.rs` takes, on plain arrays: for `cargo test` on the host.
#![allow(non_camel_case_types)]
use crate::simd::{max, min};

#[derive(Clone, Copy)]
pub struct v128([u32; 4]);

impl v128 {
    fn lanes<T: Copy, const N: usize>(self) -> [T; N] {
        unsafe { core::mem::transmute_copy(&self) }
    }
    fn of<T: Copy, const N: usize>(lanes: [T; N]) -> v128 {
        unsafe { core::mem::transmute_copy(&lanes) }
    }
}

/// `name = From -> To, |lanes| value` is the instruction that gives each lane that value.
macro_rules! lanewise {
    ($($name:ident = $From:ty => $To:ty, |$($lane:ident),+| $value:expr;)*) => { $(
        pub fn $name($($lane: v128),+) -> v128 {
            const N: usize = 16 / size_of::<$From>();
            $(let $lane: [$From; N] = $lane.lanes();)+
            let value = |i: usize| -> $To {
                $(let $lane = $lane[i];)+
                $value
            };
            v128::of(core::array::from_fn::<$To, N, _>(value))
        }
    )* };
}

/// All ones, or all zeros.
fn mask(set: bool) -> u32 {
    (set as u32).wrapping_neg()
}

lanewise! {
    f32x4_add = f32 => f32, |a, b| a + b;
    f32x4_sub = f32 => f32, |a, b| a - b;
    f32x4_mul = f32 => f32, |a, b| a * b;
    f32x4_div = f32 => f32, |a, b| a / b;
    f32x4_max = f32 => f32, |a, b| max(a, b);
    f32x4_min = f32 => f32, |a, b| min(a, b);
    f32x4_pmax = f32 => f32, |a, b| if a < b { b } else { a };
    f32x4_pmin = f32 => f32, |a, b| if b < a { b } else { a };
    f32x4_abs = f32 => f32, |a| a.abs();
    f32x4_sqrt = f32 => f32, |a| a.sqrt();
    f32x4_nearest = f32 => f32, |a| a.round_ties_even();
    f32x4_lt = f32 => u32, |a, b| mask(a < b);
    f32x4_le = f32 => u32, |a, b| mask(a <= b);
    f32x4_ne = f32 => u32, |a, b| mask(a != b);
    f32x4_convert_i32x4 = i32 => f32, |a| a as f32;
    f32x4_convert_u32x4 = u32 => f32, |a| a as f32;
    i32x4_trunc_sat_f32x4 = f32 => i32, |a| a as i32;
    u32x4_add = u32 => u32, |a, b| a.wrapping_add(b);
    u32x4_sub = u32 => u32, |a, b| a.wrapping_sub(b);
    u32x4_eq = u32 => u32, |a, b| mask(a == b);
    v128_and = u32 => u32, |a, b| a & b;
    v128_or = u32 => u32, |a, b| a | b;
    v128_xor = u32 => u32, |a, b| a ^ b;
    v128_bitselect = u32 => u32, |a, b, set| a & set | b & !set;
    f64x2_add = f64 => f64, |a, b| a + b;
    f64x2_mul = f64 => f64, |a, b| a * b;
    f64x2_sqrt = f64 => f64, |a| a.sqrt();
}

pub fn f32x4_splat(value: f32) -> v128 {
    v128::of([value; 4])
}
pub fn u32x4_splat(value: u32) -> v128 {
    v128([value; 4])
}
pub fn f64x2_splat(value: f64) -> v128 {
    v128::of([value; 2])
}
pub fn f64x2_extract_lane<const LANE: usize>(a: v128) -> f64 {
    a.lanes::<f64, 2>()[LANE]
}
pub fn f64x2_promote_low_f32x4(a: v128) -> v128 {
    let [low, high, _, _] = a.lanes::<f32, 4>();
    v128::of([low as f64, high as f64])
}
pub fn i32x4_shuffle<const A: usize, const B: usize, const C: usize, const D: usize>(a: v128, b: v128) -> v128 {
    v128([A, B, C, D].map(|lane| if lane < 4 { a.0[lane] } else { b.0[lane - 4] }))
}
pub fn i64x2_shuffle<const A: usize, const B: usize>(a: v128, b: v128) -> v128 {
    v128::of([A, B].map(|lane| if lane < 2 { a } else { b }.lanes::<u64, 2>()[lane % 2]))
}
pub fn u32x4_shl(a: v128, count: u32) -> v128 {
    v128(a.0.map(|lane| lane << count))
}
pub fn u32x4_shr(a: v128, count: u32) -> v128 {
    v128(a.0.map(|lane| lane >> count))
}
pub fn i32x4_shr(a: v128, count: u32) -> v128 {
    v128(a.0.map(|lane| (lane as i32 >> count) as u32))
}
/// Of lanes that fit; the upper half of the result, which nobody takes, is zero.
pub fn u16x8_narrow_i32x4(a: v128, _: v128) -> v128 {
    v128([a.0[0] | a.0[1] << 16, a.0[2] | a.0[3] << 16, 0, 0])
}
pub unsafe fn v128_load(p: *const v128) -> v128 {
    p.read_unaligned()
}
pub unsafe fn v128_load32_splat(p: *const u32) -> v128 {
    v128([p.read_unaligned(); 4])
}
pub unsafe fn u32x4_load_extend_u16x4(p: *const u16) -> v128 {
    v128((p as *const [u16; 4]).read_unaligned().map(u32::from))
}
pub unsafe fn v128_store(p: *mut v128, a: v128) {
    p.write_unaligned(a)
}
pub unsafe fn v128_store64_lane<const LANE: usize>(a: v128, p: *mut u64) {
    p.write_unaligned(a.lanes::<u64, 2>()[LANE])
}
