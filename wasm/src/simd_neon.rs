//! The registers of `simd.rs` on NEON, which every processor for aarch64 Linux has.
use core::arch::aarch64::*;

/// f32 in a register.
pub const LANES: usize = 4;
pub type Floats = float32x4_t;
pub type Words = uint32x4_t;
pub type Doubles = float64x2_t;
pub type Mask = uint32x4_t;

macro_rules! registers {
    ($($function:ident($($argument:ident: $Type:ty),+) -> $Out:ty = $value:expr;)*) => { $(
        #[inline(always)]
        pub fn $function($($argument: $Type),+) -> $Out {
            unsafe { $value }
        }
    )* };
}
registers! {
    add(a: Floats, b: Floats) -> Floats = vaddq_f32(a, b);
    sub(a: Floats, b: Floats) -> Floats = vsubq_f32(a, b);
    mul(a: Floats, b: Floats) -> Floats = vmulq_f32(a, b);
    div(a: Floats, b: Floats) -> Floats = vdivq_f32(a, b);
    madd(a: Floats, b: Floats, c: Floats) -> Floats = vfmaq_f32(c, a, b);
    max(a: Floats, b: Floats) -> Floats = vmaxq_f32(a, b);
    min(a: Floats, b: Floats) -> Floats = vminq_f32(a, b);
    // The instructions of that name put a number for any NaN, so that the larger is chosen by a comparison.
    max_of_numbers(a: Floats, b: Floats) -> Floats = vbslq_f32(vcltq_f32(a, b), b, a);
    min_of_numbers(a: Floats, b: Floats) -> Floats = vbslq_f32(vcltq_f32(b, a), b, a);
    abs(a: Floats) -> Floats = vabsq_f32(a);
    sqrt(a: Floats) -> Floats = vsqrtq_f32(a);
    nearest(a: Floats) -> Floats = vrndnq_f32(a);
    lt(a: Floats, b: Floats) -> Mask = vcltq_f32(a, b);
    le(a: Floats, b: Floats) -> Mask = vcleq_f32(a, b);
    ne(a: Floats, b: Floats) -> Mask = vmvnq_u32(vceqq_f32(a, b));
    select(mask: Mask, a: Floats, b: Floats) -> Floats = vbslq_f32(mask, a, b);
    splat(v: f32) -> Floats = vdupq_n_f32(v);
    bits(a: Floats) -> Words = vreinterpretq_u32_f32(a);
    floats(a: Words) -> Floats = vreinterpretq_f32_u32(a);
    to_int(a: Floats) -> Words = vreinterpretq_u32_s32(vcvtq_s32_f32(a));
    signed_to_f32(a: Words) -> Floats = vcvtq_f32_s32(vreinterpretq_s32_u32(a));
    unsigned_to_f32(a: Words) -> Floats = vcvtq_f32_u32(a);
    add_words(a: Words, b: Words) -> Words = vaddq_u32(a, b);
    sub_words(a: Words, b: Words) -> Words = vsubq_u32(a, b);
    and(a: Words, b: Words) -> Words = vandq_u32(a, b);
    or(a: Words, b: Words) -> Words = vorrq_u32(a, b);
    xor(a: Words, b: Words) -> Words = veorq_u32(a, b);
    eq(a: Words, b: Words) -> Mask = vceqq_u32(a, b);
    shl(a: Words, count: u32) -> Words = vshlq_u32(a, vdupq_n_s32(count as i32));
    // A shift by a negative count is one to the right.
    shr(a: Words, count: u32) -> Words = vshlq_u32(a, vdupq_n_s32(-(count as i32)));
    sar(a: Words, count: u32) -> Words =
        vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(a), vdupq_n_s32(-(count as i32))));
    splat_double(v: f64) -> Doubles = vdupq_n_f64(v);
    add_doubles(a: Doubles, b: Doubles) -> Doubles = vaddq_f64(a, b);
    mul_doubles(a: Doubles, b: Doubles) -> Doubles = vmulq_f64(a, b);
    sqrt_doubles(a: Doubles) -> Doubles = vsqrtq_f64(a);
    widen_low(a: Floats) -> Doubles = vcvt_f64_f32(vget_low_f32(a));
    widen_high(a: Floats) -> Doubles = vcvt_high_f64_f32(a);
    doubles(a: Doubles) -> [f64; 2] = core::mem::transmute(a);
    widen_f16(a: Words) -> Floats = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(a)));
    narrow_f16(a: Floats) -> Words = vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(a)));
}

#[inline(always)]
pub unsafe fn load(p: *const f32) -> Floats {
    vld1q_f32(p)
}
#[inline(always)]
pub unsafe fn load_splat(p: *const f32) -> Floats {
    splat(p.read_unaligned())
}
#[inline(always)]
pub unsafe fn store(p: *mut f32, a: Floats) {
    vst1q_f32(p, a)
}
#[inline(always)]
pub unsafe fn load_u16(p: *const u16) -> Words {
    vmovl_u16(vld1_u16(p))
}
#[inline(always)]
pub unsafe fn store_u16(p: *mut u16, a: Words) {
    vst1_u16(p, vmovn_u32(a))
}

/// Four neighbors, each in all lanes: a product takes them out of one register, so that none of them costs an instruction.
#[inline(always)]
pub unsafe fn load_splats(p: *const f32) -> [Floats; 4] {
    let four = load(p);
    [vdupq_laneq_f32::<0>(four), vdupq_laneq_f32::<1>(four), vdupq_laneq_f32::<2>(four), vdupq_laneq_f32::<3>(four)]
}

/// Fetches the cache line of an address, which need not be one of the process.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    unsafe { core::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, readonly, preserves_flags)) }
}

/// The same, no closer than into the second cache.
#[inline(always)]
pub fn prefetch_near<T>(p: *const T) {
    unsafe { core::arch::asm!("prfm pldl2keep, [{}]", in(reg) p, options(nostack, readonly, preserves_flags)) }
}

/// Copies 64 bytes, past the caches as far as the processor takes the hint.
#[cfg(feature = "native")]
#[inline(always)]
pub unsafe fn copy_line(to: *mut u8, from: *const u8) {
    core::arch::asm!("ldnp {a:q}, {b:q}, [{from}]", "ldnp {c:q}, {d:q}, [{from}, #32]", "stnp {a:q}, {b:q}, [{to}]",
        "stnp {c:q}, {d:q}, [{to}, #32]", to = in(reg) to, from = in(reg) from, a = out(vreg) _, b = out(vreg) _,
        c = out(vreg) _, d = out(vreg) _, options(nostack, preserves_flags));
}

/// An ordinary store: the hint is for pairs of vectors.
#[inline(always)]
pub unsafe fn store_past_caches(p: *mut f32, a: Floats) {
    store(p, a)
}

/// Nothing: such stores are ordered as all others are.
#[inline(always)]
pub fn end_past_caches() {}

/// Four f32, as in other vectors.
#[derive(Clone, Copy)]
pub struct Quad(Floats);

impl Quad {
    #[inline(always)]
    pub fn zero() -> Quad {
        Quad(splat(0.0))
    }
    #[inline(always)]
    pub unsafe fn load(p: *const f32) -> Quad {
        Quad(load(p))
    }
    /// Four bf16, widened.
    #[inline(always)]
    pub unsafe fn load_bf16(p: *const u16) -> Quad {
        Quad(floats(shl(load_u16(p), 16)))
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
        vst1_f32(p, vget_low_f32(self.0))
    }
    /// Rows to columns.
    #[inline(always)]
    pub fn transpose(r: [Quad; 4]) -> [Quad; 4] {
        unsafe {
            // Each pair holds columns 0 and 1, or 2 and 3, of two rows; 64 bits of two pairs are a column.
            let (t0, t1) = (vzip1q_f32(r[0].0, r[1].0), vzip2q_f32(r[0].0, r[1].0));
            let (t2, t3) = (vzip1q_f32(r[2].0, r[3].0), vzip2q_f32(r[2].0, r[3].0));
            let lower = |a, b| vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
            let upper = |a, b| vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
            [Quad(lower(t0, t2)), Quad(upper(t0, t2)), Quad(lower(t1, t3)), Quad(upper(t1, t3))]
        }
    }
}
