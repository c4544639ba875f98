//! Rotary position embedding, and its table.
use crate::dtype::{load_part, store_part, Element};
use crate::simd::{F32s, LANES};
use crate::status::{Status, POSITION};
use crate::workspace::Workspace;

/// Rotates the `2 * half` dims of each head from `start` on by its position's angles, each of the first half with its like in the
/// second or, interleaved, neighbors; copies the rest. A token whose position lies
/// beyond the tables becomes zeros; the first one is noted.
pub unsafe fn rotate<T: Element>(
    space: Workspace,
    batch: usize,
    seq: usize,
    heads: usize,
    head_dim: usize,
    start: usize,
    half: usize,
    table_rows: usize,
    stride: usize,
    interleaved: bool,
    inverse: bool,
    y: *mut T,
    x: *const T,
    cos: *const f32,
    sin: *const f32,
    positions: *const i32,
    status: *mut Status,
) {
    let sign = F32s::splat(if inverse { -1.0 } else { 1.0 });
    let position_of = |token: usize| {
        if positions.is_null() {
            token.checked_rem(seq).unwrap_or(0) as isize
        } else {
            positions.add(token).read_unaligned() as isize
        }
    };
    // Before the tokens are shared, so that the first fault is noted.
    let outside = (0..batch * seq).find(|token| position_of(*token) as usize >= table_rows);
    if let Some(token) = outside {
        Status::note(status, POSITION, token, position_of(token) as f64, table_rows);
    }
    space.split(batch * seq, heads * head_dim, |tokens, _| {
        for token in tokens {
            let position = position_of(token);
            if position as usize >= table_rows {
                core::ptr::write_bytes(y.add(token * heads * head_dim), 0, heads * head_dim);
                continue;
            }
            let position = position as usize;
            let (c, n) = (cos.add(position * half), sin.add(position * half));
            for h in 0..heads {
                let from = x.add(token * stride + h * head_dim);
                let to = y.add((token * heads + h) * head_dim);
                core::ptr::copy_nonoverlapping(from, to, start);
                let end = start + 2 * half;
                core::ptr::copy_nonoverlapping(from.add(end), to.add(end), head_dim - end);
                let (from, to) = (from.add(start), to.add(start));
                if interleaved {
                    rotate_neighbors(half, if inverse { -1.0 } else { 1.0 }, to, from, c, n);
                    continue;
                }
                for i in (0..half).step_by(LANES) {
                    let count = (half - i).min(LANES);
                    let (c, n) = (load_part(c.add(i), count), sign * load_part(n.add(i), count));
                    let (a, b) = (load_part(from.add(i), count), load_part(from.add(half + i), count));
                    store_part(to.add(i), a * c - b * n, count);
                    store_part(to.add(half + i), b * c + a * n, count);
                }
            }
        }
    });
}

/// Rotates `half` pairs of neighbors.
#[inline(never)]
unsafe fn rotate_neighbors<T: Element>(
    half: usize,
    sign: f32,
    to: *mut T,
    from: *const T,
    cos: *const f32,
    sin: *const f32,
) {
    for i in 0..half {
        let (c, n) = (cos.add(i).read_unaligned(), sign * sin.add(i).read_unaligned());
        let (a, b) = (T::load(from.add(2 * i)), T::load(from.add(2 * i + 1)));
        T::store(to.add(2 * i), a * c - b * n);
        T::store(to.add(2 * i + 1), b * c + a * n);
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
