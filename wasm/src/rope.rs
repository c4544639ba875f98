//! Rotary position embedding in the half layout, and its table.
use crate::dtype::{load_part, store_part, Element};
use crate::simd::F32x4;

/// Sizes of a rotation.
#[derive(Clone, Copy)]
pub struct Shape {
    pub batch: usize,
    pub seq: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub rotary_dim: usize,
    /// Elements from one token's row of `x` to the next.
    pub stride: usize,
    /// Turns the other way.
    pub inverse: bool,
}

/// Rotates the first `rotary_dim` of each head by its position's angles; copies the rest.
///
/// # Safety
/// The arrays hold what the shape says; `positions` is null or holds `batch * seq`.
pub unsafe fn rotate<T: Element>(
    y: *mut T,
    x: *const T,
    cos: *const f32,
    sin: *const f32,
    positions: *const i32,
    s: Shape,
) {
    let half = s.rotary_dim / 2;
    let sign = F32x4::splat(if s.inverse { -1.0 } else { 1.0 });
    for token in 0..s.batch * s.seq {
        let position = if positions.is_null() {
            token.checked_rem(s.seq).unwrap_or(0)
        } else {
            positions.add(token).read_unaligned() as usize
        };
        let (c, n) = (cos.add(position * half), sin.add(position * half));
        for h in 0..s.heads {
            let from = x.add(token * s.stride + h * s.head_dim);
            let to = y.add((token * s.heads + h) * s.head_dim);
            let mut i = 0;
            while i < half {
                let count = if half - i < 4 { half - i } else { 4 };
                let (c, n) = (load_part(c.add(i), count), sign * load_part(n.add(i), count));
                let (a, b) = (load_part(from.add(i), count), load_part(from.add(half + i), count));
                store_part(to.add(i), a * c - b * n, count);
                store_part(to.add(half + i), b * c + a * n, count);
                i += 4;
            }
            for i in 2 * half..s.head_dim {
                *to.add(i) = *from.add(i);
            }
        }
    }
}

/// `cos[p, i] = scale * cos(p * inv_freq[i])`, and `sin` alike. The angle is rounded to f32 first, as PyTorch does.
///
/// # Safety
/// The tables hold `positions * half` elements, `inv_freq` `half`.
pub unsafe fn table(cos: *mut f32, sin: *mut f32, inv_freq: *const f32, positions: usize, half: usize, scale: f32) {
    for p in 0..positions {
        for i in 0..half {
            let angle = (p as f32 * inv_freq.add(i).read_unaligned()) as f64;
            let at = p * half + i;
            cos.add(at).write_unaligned(libm::cos(angle) as f32 * scale);
            sin.add(at).write_unaligned(libm::sin(angle) as f32 * scale);
        }
    }
}
