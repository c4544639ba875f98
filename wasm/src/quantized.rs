//! Weights of 4 or 8 bits an element in blocks with a factor each, as bitsandbytes quantizes them.
//!
//! A block is 64 neighbors of the flat weight and their largest magnitude, f32: an element is a code's value times that. Blocks
//! follow each other, and the last one has room for all of its elements, so that element `i` lies at a place that follows from `i`.
//! - NF4: 4 bytes of the magnitude, then 32 bytes of two elements each, the first in the high half. Values are `NF4`.
//! - int8: 4 bytes of the magnitude, then 64 signed bytes. Values are `q / 127`.
//! - NF4 with quantized magnitudes: 256 blocks together. A factor and an offset, f32, then a byte for each block, then 32 bytes of
//!   elements for each. A block's magnitude is `DYNAMIC[byte] * factor + offset`.
use crate::dtype::Element;
use crate::matmul::{gemm, Matrix, Product, Right};
use crate::simd::{max, F32s, LANES};
use crate::with_wider;
use crate::workspace::Workspace;
use core::ops::Range;

/// Elements of a block.
pub const BLOCK: usize = 64;
/// Blocks whose magnitudes are quantized together.
const NESTED: usize = 256;
/// Codes of the formats, in the order of `OPS.quantization` in `src/device/kernels/signature.ts`.
const INT8: u32 = 1;
const NESTED_NF4: u32 = 2;

/// The 16 values of a 4-bit NormalFloat (Dettmers et al., "QLoRA", 2023, appendix E): quantiles of a normal distribution.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Values of the two elements of a byte.
static PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [NF4[byte >> 4], NF4[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Values of signed bytes, by their bits.
static BYTES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        values[byte] = byte as u8 as i8 as f32 / 127.0;
        byte += 1;
    }
    values
};

/// The values of an 8-bit code with a sign, a decimal exponent in unary and a linear fraction in what is left (Dettmers, "8-bit
/// Approximations for Parallelism in Deep Learning", 2015), in ascending order: bitsandbytes' `create_dynamic_map`.
static DYNAMIC: [f32; 256] = {
    const POWERS: [f32; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];
    let mut values = [0.0; 256];
    let mut from = 128; // of the positive ones, in ascending order
    let mut exponent = 0;
    while exponent < 7 {
        let count = 1 << exponent;
        let mut i = 0;
        while i < count {
            let mean = (edge(i, count) + edge(i + 1, count)) / 2.0;
            values[from] = POWERS[exponent] * mean;
            values[254 - from] = -values[from];
            from += 1;
            i += 1;
        }
        exponent += 1;
    }
    values[127] = 0.0;
    values[255] = 1.0;
    values
};

/// The `i`th of `count + 1` equally spaced values from 0.1 to 1, as PyTorch computes them: from both ends.
const fn edge(i: usize, count: usize) -> f32 {
    let step = (1.0 - 0.1) / count as f32;
    if i < (count + 1) / 2 {
        0.1 + step * i as f32
    } else {
        1.0 - step * (count - i) as f32
    }
}

/// Blocks in memory, from the first of a weight on.
#[derive(Clone, Copy)]
pub struct Blocks {
    pub format: u32,
    pub data: *const u8,
}

impl Blocks {
    /// The magnitude of a block, and where its elements lie.
    #[inline(always)]
    unsafe fn at(self, block: usize) -> (f32, *const u8) {
        if self.format == NESTED_NF4 {
            let group = self.data.add(block / NESTED * GROUP_BYTES);
            let [factor, offset] = (group as *const [f32; 2]).read_unaligned();
            let codes = group.add(8);
            let place = block % NESTED;
            return (DYNAMIC[*codes.add(place) as usize] * factor + offset, codes.add(NESTED + place * BLOCK / 2));
        }
        let bytes = if self.format == INT8 { 4 + BLOCK } else { 4 + BLOCK / 2 };
        let at = self.data.add(block * bytes);
        ((at as *const f32).read_unaligned(), at.add(4))
    }

    /// The elements of a block.
    #[inline(always)]
    unsafe fn decode(self, block: usize) -> [f32; BLOCK] {
        let (magnitude, from) = self.at(block);
        let mut values = [0.0; BLOCK];
        let to = values.as_mut_ptr();
        if self.format == INT8 {
            for i in 0..BLOCK {
                *to.add(i) = BYTES[*from.add(i) as usize];
            }
        } else {
            for i in 0..BLOCK / 2 {
                (to.add(2 * i) as *mut [f32; 2]).write_unaligned(PAIRS[*from.add(i) as usize]);
            }
        }
        let factor = F32s::splat(magnitude);
        for i in (0..BLOCK).step_by(LANES) {
            (F32s::load(to.add(i)) * factor).store(to.add(i));
        }
        values
    }

    /// `count` elements from `first` on, rounded.
    #[inline(never)]
    pub unsafe fn read<T: Element>(self, first: usize, count: usize, to: *mut T) {
        let end = first + count;
        for block in first / BLOCK..end.div_ceil(BLOCK) {
            let values = self.decode(block);
            let (begin, from) = (block * BLOCK, first.max(block * BLOCK));
            let until = end.min(begin + BLOCK);
            let mut i = from;
            while i + LANES <= until {
                T::store_lanes(to.add(i - first), F32s::load(values.as_ptr().add(i - begin)));
                i += LANES;
            }
            for i in i..until {
                T::store(to.add(i - first), values[i - begin]);
            }
        }
    }
}

/// Bytes of [`NESTED`] blocks with quantized magnitudes.
const GROUP_BYTES: usize = 8 + NESTED + NESTED * BLOCK / 2;

/// Elements of a quantized weight as floats.
pub unsafe fn dequantize<T: Element>(
    space: Workspace,
    format: u32,
    n: usize,
    _blocks: usize,
    _block_bytes: usize,
    dst: *mut T,
    src: *const u8,
) {
    let blocks = Blocks { format, data: src };
    space.split(n.div_ceil(BLOCK), BLOCK, |part, _| {
        let (begin, end) = (part.start * BLOCK, n.min(part.end * BLOCK));
        blocks.read(begin, end - begin, dst.add(begin));
    });
}

/// Quantizes a weight's elements. `n` need not fill the last block: the rest of it is zeros.
pub unsafe fn quantize(
    space: Workspace,
    format: u32,
    n: usize,
    _blocks: usize,
    _block_bytes: usize,
    dst: *mut u8,
    src: *const f32,
) {
    let count = n.div_ceil(BLOCK);
    if format == NESTED_NF4 {
        return space.split(count.div_ceil(NESTED), NESTED * BLOCK, |groups, _| {
            for group in groups {
                let blocks = group * NESTED..count.min((group + 1) * NESTED);
                quantize_group(n, blocks, dst.add(group * GROUP_BYTES), src);
            }
        });
    }
    space.split(count, BLOCK, |part, _| {
        for block in part {
            let values = Values::of(n, block, src);
            if format == INT8 {
                let to = dst.add(block * (4 + BLOCK));
                (to as *mut f32).write_unaligned(values.magnitude);
                for i in 0..BLOCK {
                    *to.add(4 + i) = F32s::splat(values.scaled[i] * 127.0).nearest().lanes()[0] as i8 as u8;
                }
            } else {
                let to = dst.add(block * (4 + BLOCK / 2));
                (to as *mut f32).write_unaligned(values.magnitude);
                values.pack(to.add(4));
            }
        }
    });
}

/// The elements of a block, between -1 and 1.
struct Values {
    magnitude: f32,
    scaled: [f32; BLOCK],
}

impl Values {
    /// As bitsandbytes scales them: full blocks by the inverse of their magnitude, the elements of a last block by a division.
    unsafe fn of(n: usize, block: usize, src: *const f32) -> Values {
        let begin = block * BLOCK;
        let count = BLOCK.min(n - begin);
        let mut scaled = [0.0; BLOCK];
        let mut magnitude = 0.0;
        for i in 0..count {
            scaled[i] = src.add(begin + i).read_unaligned();
            magnitude = max(magnitude, scaled[i].abs());
        }
        let least = if magnitude < 1e-38 { 1e-38 } else { magnitude };
        let inverse = 1.0 / least;
        for value in &mut scaled[..count] {
            let one = if count == BLOCK { *value * inverse } else { *value / least };
            *value = if one > 1.0 {
                1.0
            } else if one < -1.0 {
                -1.0
            } else {
                one
            };
        }
        Values { magnitude: if count == BLOCK { magnitude } else { least }, scaled }
    }

    /// Two codes to a byte, the first in the high half.
    unsafe fn pack(&self, to: *mut u8) {
        for i in 0..BLOCK / 2 {
            *to.add(i) = (nearest(&NF4, self.scaled[2 * i]) << 4) | nearest(&NF4, self.scaled[2 * i + 1]);
        }
    }
}

/// Index of the nearest of ascending values, of two that are as near the lower one.
fn nearest(values: &[f32], x: f32) -> u8 {
    let (mut low, mut high) = (0, values.len() - 1);
    while low < high {
        let middle = (low + high) / 2;
        if (values[middle] + values[middle + 1]) / 2.0 < x {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low as u8
}

/// Up to [`NESTED`] blocks, and their magnitudes less their mean, in 8 bits.
unsafe fn quantize_group(n: usize, blocks: Range<usize>, to: *mut u8, src: *const f32) {
    let codes = to.add(8);
    core::ptr::write_bytes(to, 0, GROUP_BYTES);
    let mut magnitudes = [0.0f32; NESTED];
    let mut sum = 0.0;
    for (place, block) in blocks.clone().enumerate() {
        let values = Values::of(n, block, src);
        values.pack(codes.add(NESTED + place * BLOCK / 2));
        magnitudes[place] = values.magnitude;
        sum += values.magnitude as f64;
    }
    let count = blocks.len();
    let offset = (sum / count as f64) as f32;
    let mut factor = 0.0;
    for magnitude in &mut magnitudes[..count] {
        *magnitude -= offset;
        factor = max(factor, magnitude.abs());
    }
    (to as *mut [f32; 2]).write_unaligned([factor, offset]);
    let least = if factor < 1e-38 { 1e-38 } else { factor };
    for (place, magnitude) in magnitudes[..count].iter().enumerate() {
        *codes.add(place) = nearest(&DYNAMIC, *magnitude / least);
    }
}

/// A quantized right operand: element (i, j) is element `i * row + j * col` of the blocks; `row` or `col` is 1.
#[derive(Clone, Copy)]
struct Quantized<T> {
    blocks: Blocks,
    row: usize,
    col: usize,
    element: core::marker::PhantomData<T>,
}

impl<T: Element> Right for Quantized<T> {
    type Stored = T;

    fn is_transposed(self) -> bool {
        self.row == 1 && self.col != 1
    }

    #[inline(always)]
    unsafe fn part(self, i: usize, j: usize, rows: usize, cols: usize, unpacked: *mut f32) -> Matrix<T> {
        let data = unpacked as *mut T;
        let first = i * self.row + j * self.col;
        if self.row == 1 {
            for c in 0..cols {
                self.blocks.read(first + c * self.col, rows, data.add(c * rows));
            }
            return Matrix { data, row: 1, col: rows };
        }
        for r in 0..rows {
            self.blocks.read(first + r * self.row, cols, data.add(r * cols));
        }
        Matrix { data, row: cols, col: 1 }
    }
}

/// `c = alpha * a @ op(b) + beta * c`, where `b` is quantized and dense.
#[inline(never)]
pub unsafe fn product(
    space: Workspace,
    dtype: u32,
    out_dtype: u32,
    format: u32,
    trans_b: bool,
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    beta: f32,
    lda: usize,
    ldc: usize,
    _blocks: usize,
    _block_bytes: usize,
    a: *const u8,
    b: *const u8,
    c: *mut u8,
) {
    let p = Product { m, n, k, alpha, beta };
    let (row, col) = if trans_b { (1, k) } else { (n, 1) };
    with_wider!(dtype, out_dtype, T, C => {
        let blocks = Blocks { format, data: b };
        let right = Quantized::<T> { blocks, row, col, element: core::marker::PhantomData };
        gemm(space, p, Matrix::new(a as *const T, lda, false), right, c as *mut C, ldc)
    })
}
