//! Philox 4x32-10 counters and the distributions drawn from them.
//!
//! Block `c` of a stream is the cipher of counter `c` under the stream's key and gives elements `4 c .. 4 c + 4`, so an
//! element depends on the key and its index only. What is drawn for a sample has a [`Row`] in its counter instead.
use crate::math::{cos_sin_turns, log_of_normal};
use crate::simd::{F32s, U32s, LANES};
use core::ops::Range;

/// One block: four words.
#[inline(always)]
pub fn block(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut c = counter;
    let mut k = key;
    for _ in 0..10 {
        let p0 = 0xd251_1f53u64 * c[0] as u64;
        let p1 = 0xcd9e_8d57u64 * c[2] as u64;
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(0x9e37_79b9), k[1].wrapping_add(0xbb67_ae85)];
    }
    c
}

/// One row of numbers that belong to a sample, whatever batch and rank it lies in: under the stream's key, words
/// `4 c .. 4 c + 4` are the block of the counter (c, row, sample's low word, its high one with the plane in the upper 11 bits).
#[derive(Clone, Copy)]
pub struct Row {
    pub key: u64,
    pub sample: u64,
    /// Which of several matrices of the sample, e.g. the head.
    pub plane: usize,
    pub row: usize,
}

impl Row {
    /// Words of the columns from `4 * c` on. Not inlined, as it is long.
    #[inline(never)]
    pub fn words(&self, c: usize) -> [u32; 4] {
        let high = (self.sample >> 32) as u32 | (self.plane as u32) << 21;
        block([c as u32, self.row as u32, self.sample as u32, high], [self.key as u32, (self.key >> 32) as u32])
    }
}

/// Uniform in (low, high) for each element of [batch, rows, cols] of samples that follow each other: 23 bits each, in their middle.
pub unsafe fn sample_uniform(
    batch: usize,
    rows: usize,
    cols: usize,
    key: u64,
    sample: u64,
    low: f32,
    high: f32,
    dst: *mut f32,
) {
    for place in 0..batch * rows {
        let source = Row { key, sample: sample + (place / rows) as u64, plane: 0, row: place % rows };
        for c in (0..cols).step_by(4) {
            let words = source.words(c / 4);
            for k in 0..4.min(cols - c) {
                let unit = ((words[k] >> 9) as f32 + 0.5) * (1.0 / (1 << 23) as f32);
                dst.add(place * cols + c + k).write_unaligned(unit * (high - low) + low);
            }
        }
    }
}

/// Number of blocks whose words fill two vectors.
const BLOCKS: usize = LANES / 2;

/// Calls `f` with the words of the next blocks, the even ones and the odd ones, and stores the elements that it gives for them
/// as far as they lie in `n`; the first of all is element `offset` of the stream.
#[inline(always)]
unsafe fn stream(dst: *mut f32, n: Range<usize>, key: u64, offset: u64, f: impl Fn(U32s, U32s) -> (F32s, F32s)) {
    let (dst, n, offset) = (dst.add(n.start), n.len(), offset + n.start as u64);
    let key = [key as u32, (key >> 32) as u32];
    let group = 4 * BLOCKS as u64;
    let mut first = offset / group * BLOCKS as u64;
    let mut skip = (offset % group) as usize;
    let mut i = 0;
    while i < n {
        let (mut even, mut odd) = ([0; LANES], [0; LANES]);
        for b in 0..BLOCKS {
            let counter = first + b as u64;
            let words = block([counter as u32, (counter >> 32) as u32, 0, 0], key);
            (even[2 * b], odd[2 * b], even[2 * b + 1], odd[2 * b + 1]) = (words[0], words[1], words[2], words[3]);
        }
        let (x, y) = f(U32s::from_lanes(even), U32s::from_lanes(odd));
        let (x, y) = (x.lanes(), y.lanes());
        for k in 0..LANES {
            for (place, value) in [(2 * k, x[k]), (2 * k + 1, y[k])] {
                if place >= skip && i + place - skip < n {
                    dst.add(i + place - skip).write_unaligned(value);
                }
            }
        }
        i += 2 * LANES - skip;
        skip = 0;
        first += BLOCKS as u64;
    }
}

/// Uniform in [low, high).
pub unsafe fn uniform(n: Range<usize>, key: u64, offset: u64, low: f32, high: f32, dst: *mut f32) {
    let unit = F32s::splat(1.0 / (1 << 24) as f32);
    let (start, width) = (F32s::splat(low), F32s::splat(high - low));
    // Rounding may reach `high`: then the float below it.
    let last = F32s::splat(if low < high { high.next_down() } else { low });
    let draw = |words: U32s| (words.shr::<8>().signed_to_f32() * unit * width + start).min(last);
    stream(dst, n, key, offset, |even, odd| (draw(even), draw(odd)));
}

/// Normal, by Box-Muller on each even word and the odd one that follows it.
pub unsafe fn normal(n: Range<usize>, key: u64, offset: u64, mean: f32, std: f32, dst: *mut f32) {
    let (mean, std) = (F32s::splat(mean), F32s::splat(std));
    let unit = F32s::splat(1.0 / 4_294_967_296.0);
    let half = F32s::splat(0.5);
    stream(dst, n, key, offset, |even, odd| {
        // In (0, 1] with all 32 bits for the radius, in [0, 1) with 24 for the angle.
        let u = (even.unsigned_to_f32() + half) * unit;
        let turns = odd.shr::<8>().signed_to_f32() * F32s::splat(1.0 / (1 << 24) as f32);
        let radius = (F32s::splat(-2.0) * log_of_normal(u)).max(F32s::zero()).sqrt();
        let (cos, sin) = cos_sin_turns(turns);
        (radius * cos * std + mean, radius * sin * std + mean)
    });
}
