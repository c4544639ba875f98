//! Packed panels and the register tile that matrix products and attention are made of.
//!
//! A panel holds `W` rows (or columns) of a matrix interleaved, step by step along the summed dim, so that the tile
//! reads both operands front to back. The sum of each output element runs over that dim in order, in one chain:
//! its bits do not depend on the sizes of the output nor on its place in it.
use crate::dtype::Element;
use crate::simd::F32x4;

/// Rows of a tile: width of the left operand's panels.
pub const MR: usize = 4;
/// Columns of a tile: width of the right operand's panels.
pub const NR: usize = 8;

/// Packs `count` rows of length `depth` into panels of `W`, missing rows as zeros.
/// Element (row, step) of the source is `src[row * row_stride + step * step_stride]`; one of the strides is 1.
/// `dst` holds `count` rounded up to `W`, times `depth`.
pub unsafe fn pack<T: Element, const W: usize>(
    dst: *mut f32,
    src: *const T,
    row_stride: usize,
    step_stride: usize,
    count: usize,
    depth: usize,
) {
    for row in (0..count).step_by(W) {
        let panel = dst.add(row * depth);
        let rows = if count - row < W { count - row } else { W };
        let from = src.add(row * row_stride);
        if row_stride == 1 {
            pack_neighbors::<T, W>(panel, from, step_stride, rows, depth);
        } else {
            for g in (0..W).step_by(4) {
                let four = rows.saturating_sub(g);
                pack_rows::<T, W>(panel.add(g), from.add(g * row_stride), row_stride, step_stride, four, depth);
            }
        }
    }
}

/// A panel whose rows lie next to each other at each step.
#[inline(always)]
unsafe fn pack_neighbors<T: Element, const W: usize>(
    panel: *mut f32,
    src: *const T,
    step_stride: usize,
    rows: usize,
    depth: usize,
) {
    for s in 0..depth {
        let (to, from) = (panel.add(s * W), src.add(s * step_stride));
        if rows == W {
            for i in (0..W).step_by(4) {
                T::load4(from.add(i)).store(to.add(i));
            }
        } else {
            for i in 0..W {
                *to.add(i) = if i < rows { T::load(from.add(i)) } else { 0.0 };
            }
        }
    }
}

/// Four rows of a panel (those from `rows` on as zeros), each running along its steps.
#[inline(always)]
unsafe fn pack_rows<T: Element, const W: usize>(
    to: *mut f32,
    src: *const T,
    row_stride: usize,
    step_stride: usize,
    rows: usize,
    depth: usize,
) {
    let mut s = 0;
    if step_stride == 1 {
        while s + 4 <= depth {
            let at = src.add(s);
            let row = |r: usize| if r < rows { T::load4(at.add(r * row_stride)) } else { F32x4::zero() };
            let columns = F32x4::transpose([row(0), row(1), row(2), row(3)]);
            columns[0].store(to.add(s * W));
            columns[1].store(to.add((s + 1) * W));
            columns[2].store(to.add((s + 2) * W));
            columns[3].store(to.add((s + 3) * W));
            s += 4;
        }
    }
    while s < depth {
        for r in 0..4 {
            *to.add(s * W + r) = if r < rows { T::load(src.add(r * row_stride + s * step_stride)) } else { 0.0 };
        }
        s += 1;
    }
}

/// The product of one left and one right panel over `depth` steps.
#[inline(always)]
unsafe fn product(depth: usize, a: *const f32, b: *const f32) -> [[F32x4; NR / 4]; MR] {
    let mut sums = [[F32x4::zero(); NR / 4]; MR];
    let (mut a, mut b) = (a, b);
    for _ in 0..depth {
        let right = [F32x4::load(b), F32x4::load(b.add(4))];
        for i in 0..MR {
            let left = F32x4::load_splat(a.add(i));
            sums[i][0] = left.madd(right[0], sums[i][0]);
            sums[i][1] = left.madd(right[1], sums[i][1]);
        }
        a = a.add(MR);
        b = b.add(NR);
    }
    sums
}

/// `c = alpha * product + beta * c` for a whole tile; with `beta` 0, `c` is not read.
#[inline(never)]
pub unsafe fn tile(depth: usize, a: *const f32, b: *const f32, c: *mut f32, ldc: usize, alpha: f32, beta: f32) {
    let sums = product(depth, a, b);
    let (scale, keep) = (F32x4::splat(alpha), F32x4::splat(beta));
    for i in 0..MR {
        for j in 0..NR / 4 {
            let p = c.add(i * ldc + 4 * j);
            let new = scale * sums[i][j];
            let value = if beta == 0.0 { new } else { keep * F32x4::load(p) + new };
            value.store(p);
        }
    }
}

/// The first `rows` by `cols` of a tile, as [`tile`].
#[inline(never)]
pub unsafe fn tile_part(
    depth: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    beta: f32,
    rows: usize,
    cols: usize,
) {
    let mut whole = [0.0f32; MR * NR];
    tile(depth, a, b, whole.as_mut_ptr(), NR, 1.0, 0.0);
    for i in 0..rows {
        for j in 0..cols {
            let p = c.add(i * ldc + j);
            let new = alpha * *whole.as_ptr().add(i * NR + j);
            *p = if beta == 0.0 { new } else { beta * *p + new };
        }
    }
}
