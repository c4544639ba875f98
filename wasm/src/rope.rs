//! Rotary position embedding in the half layout, and its table.
use crate::dtype::{load_part, store_part, Element};
use crate::simd::{F32s, LANES};
use crate::status::{Status, POSITION};

/// Rotates the first `2 * half` dims of each head by its position's angles; copies the rest. A token whose position lies
/// beyond the tables becomes zeros; the first one is noted.
pub unsafe fn rotate<T: Element>(
    batch: usize,
    seq: usize,
    heads: usize,
    head_dim: usize,
    half: usize,
    table_rows: usize,
    stride: usize,
    inverse: bool,
    y: *mut T,
    x: *const T,
    cos: *const f32,
    sin: *const f32,
    positions: *const i32,
    status: *mut Status,
) {
    let sign = F32s::splat(if inverse { -1.0 } else { 1.0 });
    for token in 0..batch * seq {
        let position = if positions.is_null() {
            token.checked_rem(seq).unwrap_or(0) as i32
        } else {
            positions.add(token).read_unaligned()
        };
        if position as u32 as usize >= table_rows {
            Status::note(status, POSITION, token, position as f64, table_rows);
            core::ptr::write_bytes(y.add(token * heads * head_dim), 0, heads * head_dim);
            continue;
        }
        let position = position as usize;
        let (c, n) = (cos.add(position * half), sin.add(position * half));
        for h in 0..heads {
            let from = x.add(token * stride + h * head_dim);
            let to = y.add((token * heads + h) * head_dim);
            for i in (0..half).step_by(LANES) {
                let count = (half - i).min(LANES);
                let (c, n) = (load_part(c.add(i), count), sign * load_part(n.add(i), count));
                let (a, b) = (load_part(from.add(i), count), load_part(from.add(half + i), count));
                store_part(to.add(i), a * c - b * n, count);
                store_part(to.add(half + i), b * c + a * n, count);
            }
            for i in 2 * half..head_dim {
                *to.add(i) = *from.add(i);
            }
        }
    }
}

/// `cos[p, i] = scale * cos(p * inv_freq[i])`, and `sin` alike. The angle is rounded to f32 first, as PyTorch does.
pub unsafe fn table(positions: usize, half: usize, scale: f32, cos: *mut f32, sin: *mut f32, inv_freq: *const f32) {
    for p in 0..positions {
        for i in 0..half {
            let angle = (p as f32 * inv_freq.add(i).read_unaligned()) as f64;
            let at = p * half + i;
            cos.add(at).write_unaligned(libm::cos(angle) as f32 * scale);
            sin.add(at).write_unaligned(libm::sin(angle) as f32 * scale);
        }
    }
}
