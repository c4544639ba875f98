//! Sums over ranks of arrays that lie in this memory.
use crate::dtype::{load_part, store_part, Element, I64};
use crate::simd::{end_past_caches, F32s, LANES};
use crate::with_wider;
use core::ops::Range;

/// `dst[i] (+)= (src_0[i] + src_1[i] + …) * scale`: in f32, or of int64 without a factor. Values that go past the caches are not read
/// before it is written, and leaves in them what they hold.
pub unsafe fn sum_ranks(
    dtype: u32,
    dst_dtype: u32,
    n: Range<usize>,
    accumulate: bool,
    past_caches: bool,
    dst: *mut u8,
    sources: *const usize,
    count: usize,
    scale: *const f32,
) {
    if dtype == I64 {
        return sum_i64(dst as *mut i64, sources, count, n, accumulate);
    }
    let scale = if scale.is_null() { 1.0 } else { scale.read_unaligned() };
    with_wider!(dtype, dst_dtype, T, D => sum::<T, D>(dst as *mut D, sources, count, n, scale, accumulate, past_caches))
}

unsafe fn sum<T: Element, D: Element>(
    dst: *mut D,
    sources: *const usize,
    count: usize,
    n: Range<usize>,
    scale: f32,
    accumulate: bool,
    past_caches: bool,
) {
    const GROUPS: usize = 4;
    let factor = F32s::splat(scale);
    let source = |s: usize| *sources.add(s) as *const T;
    let past_caches = past_caches && !accumulate && D::IS_F32 && dst.add(n.start).cast::<F32s>().is_aligned();
    let mut i = n.start;
    while i + LANES * GROUPS <= n.end {
        let mut sums = [F32s::zero(); GROUPS];
        for g in 0..GROUPS {
            sums[g] = T::load_lanes(source(0).add(i + LANES * g));
        }
        for s in 1..count {
            let from = source(s).add(i);
            for g in 0..GROUPS {
                sums[g] = sums[g] + T::load_lanes(from.add(LANES * g));
            }
        }
        for g in 0..GROUPS {
            let to = dst.add(i + LANES * g);
            let value = sums[g] * factor;
            if past_caches {
                value.store_past_caches(to.cast());
            } else {
                D::store_lanes(to, if accumulate { D::load_lanes(to) + value } else { value });
            }
        }
        i += LANES * GROUPS;
    }
    if past_caches {
        end_past_caches();
    }
    while i < n.end {
        let lanes = (n.end - i).min(LANES);
        let mut total = load_part(source(0).add(i), lanes);
        for s in 1..count {
            total = total + load_part(source(s).add(i), lanes);
        }
        let value = total * factor;
        let value = if accumulate { load_part(dst.add(i), lanes) + value } else { value };
        store_part(dst.add(i), value, lanes);
        i += LANES;
    }
}

unsafe fn sum_i64(dst: *mut i64, sources: *const usize, count: usize, n: Range<usize>, accumulate: bool) {
    for i in n {
        let mut total = if accumulate { dst.add(i).read_unaligned() } else { 0 };
        for s in 0..count {
            total = total.wrapping_add((*sources.add(s) as *const i64).add(i).read_unaligned());
        }
        dst.add(i).write_unaligned(total);
    }
}
