//! Philox 4x32-10 counters and the distributions drawn from them.
//!
//! Block `c` of a stream is the cipher of counter `c` under the stream's key and gives elements `4 c .. 4 c + 4`, so an
//! element depends on the key and its index only.
use crate::math::{cos_sin_turns, log_of_normal};
use crate::simd::{F32x4, U32x4};

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

/// Calls `f` with two consecutive blocks and stores the elements of theirs that lie in `offset .. offset + n`.
#[inline(always)]
unsafe fn stream(dst: *mut f32, n: usize, key: u64, offset: u64, f: impl Fn([u32; 4], [u32; 4]) -> [F32x4; 2]) {
    let key = [key as u32, (key >> 32) as u32];
    let mut pair = offset / 8;
    let mut skip = (offset % 8) as usize;
    let mut i = 0;
    while i < n {
        let c = pair * 2;
        let first = block([c as u32, (c >> 32) as u32, 0, 0], key);
        let second = block([c as u32 | 1, (c >> 32) as u32, 0, 0], key);
        let values = f(first, second);
        if skip == 0 && n - i >= 8 {
            values[0].store(dst.add(i));
            values[1].store(dst.add(i + 4));
            i += 8;
        } else {
            let (low, high) = (values[0].lanes(), values[1].lanes());
            while skip < 8 && i < n {
                let value = if skip < 4 { low[skip & 3] } else { high[skip & 3] };
                dst.add(i).write_unaligned(value);
                i += 1;
                skip += 1;
            }
            skip = 0;
        }
        pair += 1;
    }
}

/// Uniform in [low, high).
pub unsafe fn uniform(n: usize, key: u64, offset: u64, low: f32, high: f32, dst: *mut f32) {
    let unit = F32x4::splat(1.0 / (1 << 24) as f32);
    let (start, width) = (F32x4::splat(low), F32x4::splat(high - low));
    // Rounding may reach `high`: then the float below it.
    let last = F32x4::splat(if low < high { high.next_down() } else { low });
    let draw = |words: [u32; 4]| (U32x4::from_lanes(words).shr::<8>().signed_to_f32() * unit * width + start).min(last);
    stream(dst, n, key, offset, |a, b| [draw(a), draw(b)]);
}

/// Normal, by Box-Muller on the words of each half block.
pub unsafe fn normal(n: usize, key: u64, offset: u64, mean: f32, std: f32, dst: *mut f32) {
    let (mean, std) = (F32x4::splat(mean), F32x4::splat(std));
    let unit = F32x4::splat(1.0 / 4_294_967_296.0);
    let half = F32x4::splat(0.5);
    stream(dst, n, key, offset, |a, b| {
        // In (0, 1] with all 32 bits for the radius, in [0, 1) with 24 for the angle.
        let u = (U32x4::from_lanes([a[0], a[2], b[0], b[2]]).unsigned_to_f32() + half) * unit;
        let turns = U32x4::from_lanes([a[1], a[3], b[1], b[3]]).shr::<8>().signed_to_f32()
            * F32x4::splat(1.0 / (1 << 24) as f32);
        let radius = (F32x4::splat(-2.0) * log_of_normal(u)).max(F32x4::zero()).sqrt();
        let (cos, sin) = cos_sin_turns(turns);
        let (x, y) = ((radius * cos * std + mean).lanes(), (radius * sin * std + mean).lanes());
        [F32x4::from_lanes([x[0], y[0], x[1], y[1]]), F32x4::from_lanes([x[2], y[2], x[3], y[3]])]
    });
}
