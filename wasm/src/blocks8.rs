//! Blocks of 8-bit numbers: an f32 is the number of its nearest value in a map of 256 values from -1 to 1, and the largest magnitude
//! of its block (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"). The first element may lie within a block.
use core::ops::Range;

/// Values of a map.
pub const MAP: usize = 256;

/// The largest magnitude of each block; blocks at both ends may be shorter. NaN if any element is.
pub unsafe fn largest(blocks: Range<usize>, n: usize, first: usize, block: usize, dst: *mut f32, src: *const f32) {
    for b in blocks {
        let (begin, end) = ((b * block).saturating_sub(first), ((b + 1) * block).saturating_sub(first).min(n));
        crate::elementwise::max_abs(end.saturating_sub(begin), dst.add(b), src.add(begin));
    }
}

/// The value of the map that is nearest to `x`; the lower one of two that are as near.
#[inline(always)]
unsafe fn nearest(map: *const f32, x: f32) -> u8 {
    // The last value that is not above x, or the first of all.
    let mut low = 0;
    let mut step = MAP / 2;
    while step > 0 {
        if map.add(low + step).read_unaligned() <= x {
            low += step;
        }
        step /= 2;
    }
    if low + 1 == MAP {
        return low as u8;
    }
    let (below, above) = (map.add(low).read_unaligned(), map.add(low + 1).read_unaligned());
    (low + (above - x < x - below) as usize) as u8
}

/// Codes of all elements; nothing changes where the gate is set.
pub unsafe fn quantize(
    n: Range<usize>,
    first: usize,
    block: usize,
    _blocks: usize,
    codes: *mut u8,
    src: *const f32,
    largest: *const f32,
    map: *const f32,
    gate: *const i32,
) {
    if !gate.is_null() && gate.read_unaligned() != 0 {
        return;
    }
    for i in n {
        let most = largest.add((first + i) / block).read_unaligned();
        let x = src.add(i).read_unaligned();
        codes.add(i).write(nearest(map, if most > 0.0 { x / most } else { 0.0 }));
    }
}

/// The values of codes.
pub unsafe fn dequantize(
    n: Range<usize>,
    first: usize,
    block: usize,
    _blocks: usize,
    dst: *mut f32,
    codes: *const u8,
    largest: *const f32,
    map: *const f32,
) {
    for i in n {
        let most = largest.add((first + i) / block).read_unaligned();
        dst.add(i).write_unaligned(map.add(codes.add(i).read() as usize).read_unaligned() * most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_nearest_values() {
        let map: [f32; MAP] = core::array::from_fn(|i| (i as f32 - 127.0) / 128.0);
        for (x, code) in [(-5.0, 0), (-0.9921875, 0), (0.0, 127), (0.0039, 127), (0.0040, 128), (1.0, 255), (9.0, 255)]
        {
            assert_eq!(unsafe { nearest(map.as_ptr(), x) }, code, "{x}");
        }
    }
}
