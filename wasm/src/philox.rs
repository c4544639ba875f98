//! Philox 4x32-10 counters and the distributions drawn from them.
//!
//! Block `c` of a stream is the cipher of counter `c` under the stream's key and gives elements `4 c .. 4 c + 4`, so an
//! element depends on the key and its index only.
use crate::math::{cos_sin_turns, log_of_normal};
use crate::simd::{F32s, U32s, LANES};

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

/// Blocks of which the words fill two vectors.
const BLOCKS: usize = LANES / 2;

/// Calls `f` with the words of the next blocks, the even ones and the odd ones, and stores the elements that it gives for them
/// as far as they lie in `offset .. offset + n`.
#[inline(always)]
unsafe fn stream(dst: *mut f32, n: usize, key: u64, offset: u64, f: impl Fn(U32s, U32s) -> (F32s, F32s)) {
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
pub unsafe fn uniform(n: usize, key: u64, offset: u64, low: f32, high: f32, dst: *mut f32) {
    let unit = F32s::splat(1.0 / (1 << 24) as f32);
    let (start, width) = (F32s::splat(low), F32s::splat(high - low));
    // Rounding may reach `high`: then the float below it.
    let last = F32s::splat(if low < high { high.next_down() } else { low });
    let draw = |words: U32s| (words.shr::<8>().signed_to_f32() * unit * width + start).min(last);
    stream(dst, n, key, offset, |even, odd| (draw(even), draw(odd)));
}

/// Normal, by Box-Muller on each even word and the odd one that follows it.
pub unsafe fn normal(n: usize, key: u64, offset: u64, mean: f32, std: f32, dst: *mut f32) {
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
