//! The registers of `simd.rs` on AVX2, or on AVX-512 where the build has it: one macro for both, over a list of
//! intrinsics.
//!
//! A build has one level throughout, so all calls are inlined; the caller of the library looks whether the processor has it.
use core::arch::x86_64::*;

/// The functions that both levels have under names of their own.
macro_rules! registers {
    (
        lanes $LANES:literal, $Floats:ident $Words:ident $Doubles:ident $Mask:ident;
        $($function:ident($($argument:ident: $Type:ty),+) -> $Out:ty = $value:expr;)*
    ) => {
        /// f32 in a register.
        pub const LANES: usize = $LANES;
        pub type Floats = $Floats;
        pub type Words = $Words;
        pub type Doubles = $Doubles;
        pub type Mask = $Mask;
        $(
            #[inline(always)]
            pub fn $function($($argument: $Type),+) -> $Out {
                unsafe { $value }
            }
        )*
    };
}

#[cfg(not(target_feature = "avx512f"))]
registers! {
    lanes 8, __m256 __m256i __m256d __m256;
    add(a: Floats, b: Floats) -> Floats = _mm256_add_ps(a, b);
    sub(a: Floats, b: Floats) -> Floats = _mm256_sub_ps(a, b);
    mul(a: Floats, b: Floats) -> Floats = _mm256_mul_ps(a, b);
    div(a: Floats, b: Floats) -> Floats = _mm256_div_ps(a, b);
    madd(a: Floats, b: Floats, c: Floats) -> Floats = _mm256_fmadd_ps(a, b, c);
    // Of two numbers the second is taken unless the first is greater, or if one is NaN.
    max_of_numbers(a: Floats, b: Floats) -> Floats = _mm256_max_ps(b, a);
    min_of_numbers(a: Floats, b: Floats) -> Floats = _mm256_min_ps(b, a);
    sqrt(a: Floats) -> Floats = _mm256_sqrt_ps(a);
    nearest(a: Floats) -> Floats = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
    lt(a: Floats, b: Floats) -> Mask = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
    le(a: Floats, b: Floats) -> Mask = _mm256_cmp_ps::<_CMP_LE_OQ>(a, b);
    ne(a: Floats, b: Floats) -> Mask = _mm256_cmp_ps::<_CMP_NEQ_UQ>(a, b);
    select(mask: Mask, a: Floats, b: Floats) -> Floats = _mm256_blendv_ps(b, a, mask);
    splat(v: f32) -> Floats = _mm256_set1_ps(v);
    bits(a: Floats) -> Words = _mm256_castps_si256(a);
    floats(a: Words) -> Floats = _mm256_castsi256_ps(a);
    to_int(a: Floats) -> Words = _mm256_cvttps_epi32(a);
    signed_to_f32(a: Words) -> Floats = _mm256_cvtepi32_ps(a);
    add_words(a: Words, b: Words) -> Words = _mm256_add_epi32(a, b);
    sub_words(a: Words, b: Words) -> Words = _mm256_sub_epi32(a, b);
    and(a: Words, b: Words) -> Words = _mm256_and_si256(a, b);
    or(a: Words, b: Words) -> Words = _mm256_or_si256(a, b);
    xor(a: Words, b: Words) -> Words = _mm256_xor_si256(a, b);
    eq(a: Words, b: Words) -> Mask = _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b));
    shl(a: Words, count: u32) -> Words = _mm256_sll_epi32(a, _mm_cvtsi32_si128(count as i32));
    shr(a: Words, count: u32) -> Words = _mm256_srl_epi32(a, _mm_cvtsi32_si128(count as i32));
    sar(a: Words, count: u32) -> Words = _mm256_sra_epi32(a, _mm_cvtsi32_si128(count as i32));
    splat_double(v: f64) -> Doubles = _mm256_set1_pd(v);
    add_doubles(a: Doubles, b: Doubles) -> Doubles = _mm256_add_pd(a, b);
    mul_doubles(a: Doubles, b: Doubles) -> Doubles = _mm256_mul_pd(a, b);
    sqrt_doubles(a: Doubles) -> Doubles = _mm256_sqrt_pd(a);
    widen_low(a: Floats) -> Doubles = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
    widen_high(a: Floats) -> Doubles = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(a));
    doubles(a: Doubles) -> [f64; 4] = core::mem::transmute(a);
    widen_u16(a: __m128i) -> Words = _mm256_cvtepu16_epi32(a);
    narrow_u16(a: Words) -> __m128i =
        _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(a, a)));
    widen_f16(a: Words) -> Floats = _mm256_cvtph_ps(narrow_u16(a));
    narrow_f16(a: Floats) -> Words = widen_u16(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a));
}

#[cfg(target_feature = "avx512f")]
registers! {
    lanes 16, __m512 __m512i __m512d __mmask16;
    add(a: Floats, b: Floats) -> Floats = _mm512_add_ps(a, b);
    sub(a: Floats, b: Floats) -> Floats = _mm512_sub_ps(a, b);
    mul(a: Floats, b: Floats) -> Floats = _mm512_mul_ps(a, b);
    div(a: Floats, b: Floats) -> Floats = _mm512_div_ps(a, b);
    madd(a: Floats, b: Floats, c: Floats) -> Floats = _mm512_fmadd_ps(a, b, c);
    max_of_numbers(a: Floats, b: Floats) -> Floats = _mm512_max_ps(b, a);
    min_of_numbers(a: Floats, b: Floats) -> Floats = _mm512_min_ps(b, a);
    sqrt(a: Floats) -> Floats = _mm512_sqrt_ps(a);
    nearest(a: Floats) -> Floats = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
    lt(a: Floats, b: Floats) -> Mask = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
    le(a: Floats, b: Floats) -> Mask = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b);
    ne(a: Floats, b: Floats) -> Mask = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b);
    select(mask: Mask, a: Floats, b: Floats) -> Floats = _mm512_mask_blend_ps(mask, b, a);
    splat(v: f32) -> Floats = _mm512_set1_ps(v);
    bits(a: Floats) -> Words = _mm512_castps_si512(a);
    floats(a: Words) -> Floats = _mm512_castsi512_ps(a);
    to_int(a: Floats) -> Words = _mm512_cvttps_epi32(a);
    signed_to_f32(a: Words) -> Floats = _mm512_cvtepi32_ps(a);
    add_words(a: Words, b: Words) -> Words = _mm512_add_epi32(a, b);
    sub_words(a: Words, b: Words) -> Words = _mm512_sub_epi32(a, b);
    and(a: Words, b: Words) -> Words = _mm512_and_si512(a, b);
    or(a: Words, b: Words) -> Words = _mm512_or_si512(a, b);
    xor(a: Words, b: Words) -> Words = _mm512_xor_si512(a, b);
    eq(a: Words, b: Words) -> Mask = _mm512_cmpeq_epi32_mask(a, b);
    shl(a: Words, count: u32) -> Words = _mm512_sll_epi32(a, _mm_cvtsi32_si128(count as i32));
    shr(a: Words, count: u32) -> Words = _mm512_srl_epi32(a, _mm_cvtsi32_si128(count as i32));
    sar(a: Words, count: u32) -> Words = _mm512_sra_epi32(a, _mm_cvtsi32_si128(count as i32));
    splat_double(v: f64) -> Doubles = _mm512_set1_pd(v);
    add_doubles(a: Doubles, b: Doubles) -> Doubles = _mm512_add_pd(a, b);
    mul_doubles(a: Doubles, b: Doubles) -> Doubles = _mm512_mul_pd(a, b);
    sqrt_doubles(a: Doubles) -> Doubles = _mm512_sqrt_pd(a);
    widen_low(a: Floats) -> Doubles = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    widen_high(a: Floats) -> Doubles = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(a));
    doubles(a: Doubles) -> [f64; 8] = core::mem::transmute(a);
    widen_u16(a: __m256i) -> Words = _mm512_cvtepu16_epi32(a);
    narrow_u16(a: Words) -> __m256i = _mm512_cvtepi32_epi16(a);
    widen_f16(a: Words) -> Floats = _mm512_cvtph_ps(narrow_u16(a));
    narrow_f16(a: Floats) -> Words = widen_u16(_mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a));
}

/// Adds to `sum` the products of the words' upper halves, and then of their lower halves.
#[cfg(target_feature = "avx512bf16")]
#[inline(always)]
pub fn add_pairs(sum: Floats, a: Floats, b: Floats) -> Floats {
    let pairs = |words: Floats| -> __m512bh { unsafe { core::mem::transmute(words) } };
    unsafe { _mm512_dpbf16_ps(sum, pairs(a), pairs(b)) }
}

/// The larger, NaN if one is: the instruction takes the second where one is NaN, so that a NaN that is first is put back.
#[inline(always)]
pub fn max(a: Floats, b: Floats) -> Floats {
    select(ne(a, a), a, max_of_numbers(b, a))
}
/// The smaller, likewise.
#[inline(always)]
pub fn min(a: Floats, b: Floats) -> Floats {
    select(ne(a, a), a, min_of_numbers(b, a))
}
#[inline(always)]
pub fn abs(a: Floats) -> Floats {
    floats(and(bits(a), bits(splat(f32::from_bits(0x7fff_ffff)))))
}
/// Both halves are exact; their sum is rounded once, as a conversion is.
#[inline(always)]
pub fn unsigned_to_f32(a: Words) -> Floats {
    let low = and(a, bits(splat(f32::from_bits(0xffff))));
    add(mul(signed_to_f32(shr(a, 16)), splat(65536.0)), signed_to_f32(low))
}
#[inline(always)]
pub unsafe fn load(p: *const f32) -> Floats {
    (p as *const Floats).read_unaligned()
}
#[inline(always)]
pub unsafe fn load_splat(p: *const f32) -> Floats {
    splat(p.read_unaligned())
}
#[inline(always)]
pub unsafe fn store(p: *mut f32, a: Floats) {
    (p as *mut Floats).write_unaligned(a)
}
#[inline(always)]
pub unsafe fn load_u16(p: *const u16) -> Words {
    widen_u16(core::ptr::read_unaligned(p.cast()))
}
#[inline(always)]
pub unsafe fn store_u16(p: *mut u16, a: Words) {
    core::ptr::write_unaligned(p.cast(), narrow_u16(a))
}

/// Fetches the cache line of an address, which need not be one of the process.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
}

/// The same, no closer than into the second cache.
#[inline(always)]
pub fn prefetch_near<T>(p: *const T) {
    unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
}

/// Copies 64 bytes, to a line of memory, past the caches; it is there for others after [`end_past_caches`].
#[cfg(feature = "native")]
#[inline(always)]
pub unsafe fn copy_line(to: *mut u8, from: *const u8) {
    for half in 0..2 {
        _mm256_stream_si256(to.cast::<__m256i>().add(half), _mm256_loadu_si256(from.cast::<__m256i>().add(half)));
    }
}

#[inline(always)]
pub unsafe fn store_past_caches(p: *mut f32, a: Floats) {
    #[cfg(not(target_feature = "avx512f"))]
    _mm256_stream_ps(p, a);
    #[cfg(target_feature = "avx512f")]
    _mm512_stream_ps(p, a);
}

/// Ends stores past the caches, which are ordered with no others until then.
#[inline(always)]
pub fn end_past_caches() {
    unsafe { _mm_sfence() }
}

/// Four f32, whatever the width of other vectors.
#[derive(Clone, Copy)]
pub struct Quad(__m128);

impl Quad {
    #[inline(always)]
    pub fn zero() -> Quad {
        unsafe { Quad(_mm_setzero_ps()) }
    }
    #[inline(always)]
    pub unsafe fn load(p: *const f32) -> Quad {
        Quad(_mm_loadu_ps(p))
    }
    /// Four bf16, widened.
    #[inline(always)]
    pub unsafe fn load_bf16(p: *const u16) -> Quad {
        let words = _mm_cvtepu16_epi32(_mm_loadl_epi64(p as *const __m128i));
        Quad(_mm_castsi128_ps(_mm_slli_epi32::<16>(words)))
    }
    /// Four f16, widened.
    #[inline(always)]
    pub unsafe fn load_f16(p: *const u16) -> Quad {
        Quad(_mm_cvtph_ps(_mm_loadl_epi64(p as *const __m128i)))
    }
    /// Four pairs of bf16, `upper` in the upper halves.
    #[cfg(target_feature = "avx512bf16")]
    #[inline(always)]
    pub unsafe fn load_pairs(upper: *const u16, lower: *const u16) -> Quad {
        let four = |p: *const u16| _mm_loadl_epi64(p as *const __m128i);
        Quad(_mm_castsi128_ps(_mm_unpacklo_epi16(four(lower), four(upper))))
    }
    /// The halves of each word, swapped.
    #[cfg(target_feature = "avx512bf16")]
    #[inline(always)]
    pub fn swap_halves(self) -> Quad {
        unsafe { Quad(_mm_castsi128_ps(_mm_rol_epi32::<16>(_mm_castps_si128(self.0)))) }
    }
    #[inline(always)]
    pub unsafe fn store(self, p: *mut f32) {
        _mm_storeu_ps(p, self.0)
    }
    /// The first two.
    #[inline(always)]
    pub unsafe fn store_half(self, p: *mut f32) {
        _mm_store_sd(p as *mut f64, _mm_castps_pd(self.0))
    }
    /// Rows to columns.
    #[inline(always)]
    pub fn transpose(r: [Quad; 4]) -> [Quad; 4] {
        unsafe {
            let (t0, t1) = (_mm_unpacklo_ps(r[0].0, r[1].0), _mm_unpackhi_ps(r[0].0, r[1].0));
            let (t2, t3) = (_mm_unpacklo_ps(r[2].0, r[3].0), _mm_unpackhi_ps(r[2].0, r[3].0));
            [
                Quad(_mm_movelh_ps(t0, t2)),
                Quad(_mm_movehl_ps(t2, t0)),
                Quad(_mm_movelh_ps(t1, t3)),
                Quad(_mm_movehl_ps(t3, t1)),
            ]
        }
    }
}
