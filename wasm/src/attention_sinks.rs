//! Attention sinks: one more key of each head, whose score is a parameter and whose value is zero.
use crate::attention::row_dot;
use crate::dtype::Element;
use crate::elementwise::scale;
use crate::simd::max;

/// Runs `f` with each query of each head: the head, where its row of an output begins, and where its `lse` lies.
#[inline(always)]
fn each_query(batch: usize, seq: usize, heads: usize, head_dim: usize, mut f: impl FnMut(usize, usize, usize)) {
    for b in 0..batch {
        for h in 0..heads {
            for t in 0..seq {
                f(h, ((b * seq + t) * heads + h) * head_dim, (b * heads + h) * seq + t);
            }
        }
    }
}

/// The logarithm of a sum, given as one too, and of a sink's part; and the share that the sum has.
#[inline(never)]
fn joined(keys: f32, sink: f32) -> (f32, f32) {
    let top = max(sink, keys) as f64;
    let (own, other) = (libm::exp(keys as f64 - top), libm::exp(sink as f64 - top));
    ((top + libm::log(own + other)) as f32, (own / (own + other)) as f32)
}

/// Adds the sinks to what the keys gave.
pub unsafe fn forward<T: Element>(
    batch: usize,
    seq: usize,
    heads: usize,
    head_dim: usize,
    o: *mut T,
    lse: *mut f32,
    sinks: *const T,
) {
    each_query(batch, seq, heads, head_dim, |h, row, at| {
        let (total, share) = joined(lse.add(at).read_unaligned(), T::load(sinks.add(h)));
        lse.add(at).write_unaligned(total);
        scale(head_dim, share, o.add(row), o.add(row));
    });
}

/// Gradient of the sinks, summed in f64.
pub unsafe fn backward<T: Element>(
    batch: usize,
    seq: usize,
    heads: usize,
    head_dim: usize,
    dsinks: *mut f32,
    d_o: *const T,
    o: *const T,
    lse: *const f32,
    sinks: *const T,
) {
    for h in 0..heads {
        let sink = T::load(sinks.add(h)) as f64;
        let mut sum = 0.0;
        each_query(batch, seq, heads, head_dim, |head, row, at| {
            if head == h {
                let share = libm::exp(sink - lse.add(at).read_unaligned() as f64);
                sum -= share * row_dot(d_o.add(row), o.add(row), head_dim) as f64;
            }
        });
        dsinks.add(h).write_unaligned(sum as f32);
    }
}
