//! What the words of packed panels hold, and how a product multiplies them.
//!
//! Elements are widened to f32, one to a word. Where the processor multiplies bf16 itself (AVX512_BF16), a word holds those of
//! two steps of the summed dim; as the products of bf16 are exact in f32 and the sum takes both in order, its bits are those of
//! fused products of widened elements, but that subnormal numbers, as factors, products and sums, count as zero.
use crate::dtype::Element;
use crate::simd::{F32s, Quad};

/// How words of a left and a right operand are multiplied.
pub trait MultiplyAdd {
    /// `left * right + sum`.
    fn multiply_add(left: F32s, right: F32s, sum: F32s) -> F32s;
}

/// How elements are put into words.
pub trait Factors<T: Element>: MultiplyAdd {
    /// Steps of the summed dim in a word.
    const STEPS: usize;
    /// A word of one row, of which `steps` steps are there.
    unsafe fn word(p: *const T, step_stride: usize, steps: usize) -> f32;
    /// Words of as many neighboring rows as a vector has lanes.
    unsafe fn neighbors(p: *const T, step_stride: usize) -> F32s;
    /// Words of four neighboring rows.
    unsafe fn four_neighbors(p: *const T, step_stride: usize) -> Quad;
    /// Four words of a row whose steps lie next to each other.
    unsafe fn four_along(p: *const T) -> Quad;
}

/// Words that hold `depth` steps.
#[inline(always)]
pub fn words<T: Element, F: Factors<T>>(depth: usize) -> usize {
    depth.div_ceil(F::STEPS)
}

/// One element as f32.
pub struct Widened;

impl MultiplyAdd for Widened {
    #[inline(always)]
    fn multiply_add(left: F32s, right: F32s, sum: F32s) -> F32s {
        left.madd(right, sum)
    }
}

impl<T: Element> Factors<T> for Widened {
    const STEPS: usize = 1;
    #[inline(always)]
    unsafe fn word(p: *const T, _: usize, _: usize) -> f32 {
        T::load(p)
    }
    #[inline(always)]
    unsafe fn neighbors(p: *const T, _: usize) -> F32s {
        T::load_lanes(p)
    }
    #[inline(always)]
    unsafe fn four_neighbors(p: *const T, _: usize) -> Quad {
        T::load_quad(p)
    }
    #[inline(always)]
    unsafe fn four_along(p: *const T) -> Quad {
        T::load_quad(p)
    }
}

/// Two bf16, the first in the upper half: it is multiplied first.
#[cfg(target_feature = "avx512bf16")]
pub struct Pairs;

#[cfg(target_feature = "avx512bf16")]
mod pairs {
    use super::{F32s, Factors, MultiplyAdd, Pairs, Quad};
    use crate::dtype::{Bf16, Element};
    use crate::simd::U32s;

    impl MultiplyAdd for Pairs {
        #[inline(always)]
        fn multiply_add(left: F32s, right: F32s, sum: F32s) -> F32s {
            sum.add_pairs(left, right)
        }
    }

    impl Factors<Bf16> for Pairs {
        const STEPS: usize = 2;
        #[inline(always)]
        unsafe fn word(p: *const Bf16, step_stride: usize, steps: usize) -> f32 {
            let second = if steps > 1 { p.add(step_stride).read_unaligned().0 } else { 0 };
            f32::from_bits(Bf16::load(p).to_bits() | second as u32)
        }
        #[inline(always)]
        unsafe fn neighbors(p: *const Bf16, step_stride: usize) -> F32s {
            let second = U32s::load_u16(p.add(step_stride) as *const u16);
            Bf16::load_lanes(p).bits().or(second).floats()
        }
        #[inline(always)]
        unsafe fn four_neighbors(p: *const Bf16, step_stride: usize) -> Quad {
            Quad::load_pairs(p as *const u16, p.add(step_stride) as *const u16)
        }
        #[inline(always)]
        unsafe fn four_along(p: *const Bf16) -> Quad {
            Quad::load(p as *const f32).swap_halves()
        }
    }
}
