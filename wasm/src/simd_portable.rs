//! Vectors as plain arrays, lane for lane what WASM's instructions do. For `cargo test` on the host.

/// Four f32.
#[derive(Clone, Copy)]
pub struct F32x4([f32; 4]);
/// Four u32.
#[derive(Clone, Copy)]
pub struct U32x4([u32; 4]);
/// Four lanes that are set or not.
#[derive(Clone, Copy)]
pub struct Mask([bool; 4]);
/// Two f64.
#[derive(Clone, Copy)]
pub struct F64x2([f64; 2]);

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(a: [A; 4], b: [B; 4], f: impl Fn(A, B) -> C) -> [C; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

impl F32x4 {
    pub fn splat(v: f32) -> F32x4 {
        F32x4([v; 4])
    }
    pub fn from_lanes(l: [f32; 4]) -> F32x4 {
        F32x4(l)
    }
    pub fn lanes(self) -> [f32; 4] {
        self.0
    }
    /// # Safety
    /// 16 bytes from `p` on are readable.
    pub unsafe fn load(p: *const f32) -> F32x4 {
        F32x4((p as *const [f32; 4]).read_unaligned())
    }
    /// # Safety
    /// `p` is readable.
    pub unsafe fn load_splat(p: *const f32) -> F32x4 {
        F32x4([p.read_unaligned(); 4])
    }
    /// # Safety
    /// 16 bytes from `p` on are writable.
    pub unsafe fn store(self, p: *mut f32) {
        (p as *mut [f32; 4]).write_unaligned(self.0)
    }
    pub fn plus(self, o: F32x4) -> F32x4 {
        F32x4(zip(self.0, o.0, |a, b| a + b))
    }
    pub fn minus(self, o: F32x4) -> F32x4 {
        F32x4(zip(self.0, o.0, |a, b| a - b))
    }
    pub fn times(self, o: F32x4) -> F32x4 {
        F32x4(zip(self.0, o.0, |a, b| a * b))
    }
    pub fn over(self, o: F32x4) -> F32x4 {
        F32x4(zip(self.0, o.0, |a, b| a / b))
    }
    pub fn madd(self, b: F32x4, c: F32x4) -> F32x4 {
        self.times(b).plus(c)
    }
    pub fn max(self, o: F32x4) -> F32x4 {
        F32x4(zip(self.0, o.0, crate::simd::max))
    }
    pub fn min(self, o: F32x4) -> F32x4 {
        F32x4(zip(self.0, o.0, crate::simd::min))
    }
    pub fn max_of_numbers(self, o: F32x4) -> F32x4 {
        F32x4(zip(self.0, o.0, |a, b| if a < b { b } else { a }))
    }
    pub fn at_least(self, low: f32) -> F32x4 {
        self.max_of_numbers(F32x4::splat(low))
    }
    pub fn at_most(self, high: f32) -> F32x4 {
        F32x4(self.0.map(|v| if high < v { high } else { v }))
    }
    pub fn abs(self) -> F32x4 {
        F32x4(self.0.map(f32::abs))
    }
    pub fn sqrt(self) -> F32x4 {
        F32x4(self.0.map(f32::sqrt))
    }
    pub fn nearest(self) -> F32x4 {
        F32x4(self.0.map(f32::round_ties_even))
    }
    pub fn lt(self, o: F32x4) -> Mask {
        Mask(zip(self.0, o.0, |a, b| a < b))
    }
    pub fn le(self, o: F32x4) -> Mask {
        Mask(zip(self.0, o.0, |a, b| a <= b))
    }
    pub fn ne(self, o: F32x4) -> Mask {
        Mask(zip(self.0, o.0, |a, b| a != b))
    }
    pub fn bits(self) -> U32x4 {
        U32x4(self.0.map(f32::to_bits))
    }
    pub fn to_int(self) -> U32x4 {
        U32x4(self.0.map(|v| v as i32 as u32))
    }
    pub fn transpose(r: [F32x4; 4]) -> [F32x4; 4] {
        [0, 1, 2, 3].map(|j| F32x4([r[0].0[j], r[1].0[j], r[2].0[j], r[3].0[j]]))
    }
}

impl U32x4 {
    pub fn splat(v: u32) -> U32x4 {
        U32x4([v; 4])
    }
    pub fn from_lanes(l: [u32; 4]) -> U32x4 {
        U32x4(l)
    }
    /// # Safety
    /// 8 bytes from `p` on are readable.
    pub unsafe fn load_u16(p: *const u16) -> U32x4 {
        U32x4((p as *const [u16; 4]).read_unaligned().map(u32::from))
    }
    /// # Safety
    /// 8 bytes from `p` on are writable.
    pub unsafe fn store_u16(self, p: *mut u16) {
        (p as *mut [u16; 4]).write_unaligned(self.0.map(|v| v as u16))
    }
    pub fn add(self, o: U32x4) -> U32x4 {
        U32x4(zip(self.0, o.0, u32::wrapping_add))
    }
    pub fn sub(self, o: U32x4) -> U32x4 {
        U32x4(zip(self.0, o.0, u32::wrapping_sub))
    }
    pub fn and(self, o: U32x4) -> U32x4 {
        U32x4(zip(self.0, o.0, |a, b| a & b))
    }
    pub fn or(self, o: U32x4) -> U32x4 {
        U32x4(zip(self.0, o.0, |a, b| a | b))
    }
    pub fn xor(self, o: U32x4) -> U32x4 {
        U32x4(zip(self.0, o.0, |a, b| a ^ b))
    }
    pub fn shl<const N: u32>(self) -> U32x4 {
        U32x4(self.0.map(|v| v << N))
    }
    pub fn shr<const N: u32>(self) -> U32x4 {
        U32x4(self.0.map(|v| v >> N))
    }
    pub fn sar<const N: u32>(self) -> U32x4 {
        U32x4(self.0.map(|v| ((v as i32) >> N) as u32))
    }
    pub fn eq(self, o: U32x4) -> Mask {
        Mask(zip(self.0, o.0, |a, b| a == b))
    }
    pub fn floats(self) -> F32x4 {
        F32x4(self.0.map(f32::from_bits))
    }
    pub fn signed_to_f32(self) -> F32x4 {
        F32x4(self.0.map(|v| v as i32 as f32))
    }
    pub fn unsigned_to_f32(self) -> F32x4 {
        F32x4(self.0.map(|v| v as f32))
    }
}

impl Mask {
    pub fn select(self, a: F32x4, b: F32x4) -> F32x4 {
        F32x4([0, 1, 2, 3].map(|i| if self.0[i] { a.0[i] } else { b.0[i] }))
    }
    pub fn pick(self, a: U32x4, b: U32x4) -> U32x4 {
        U32x4([0, 1, 2, 3].map(|i| if self.0[i] { a.0[i] } else { b.0[i] }))
    }
}

impl F64x2 {
    pub fn splat(v: f64) -> F64x2 {
        F64x2([v; 2])
    }
    pub fn low(v: F32x4) -> F64x2 {
        F64x2([v.0[0] as f64, v.0[1] as f64])
    }
    pub fn high(v: F32x4) -> F64x2 {
        F64x2([v.0[2] as f64, v.0[3] as f64])
    }
    pub fn add(self, o: F64x2) -> F64x2 {
        F64x2([self.0[0] + o.0[0], self.0[1] + o.0[1]])
    }
    pub fn mul(self, o: F64x2) -> F64x2 {
        F64x2([self.0[0] * o.0[0], self.0[1] * o.0[1]])
    }
    pub fn lanes(self) -> [f64; 2] {
        self.0
    }
    /// # Safety
    /// 16 bytes from `p` on are readable.
    pub unsafe fn load(p: *const f64) -> F64x2 {
        F64x2((p as *const [f64; 2]).read_unaligned())
    }
    /// # Safety
    /// 16 bytes from `p` on are writable.
    pub unsafe fn store(self, p: *mut f64) {
        (p as *mut [f64; 2]).write_unaligned(self.0)
    }
}
