//! Attention sinks: one more key of each head, whose score is a parameter and whose value is zero.
use crate::attention::row_dot;
use crate::dtype::Element;
use crate::elementwise::scale_row;
use crate::simd::max;
use crate::workspace::Workspace;
use core::ops::Range;

/// Runs `f` with each query of some heads of all sequences: the head, where its row of an output begins, and where its `lse` lies.
#[inline(always)]
fn each_query(places: Range<usize>, seq: usize, heads: usize, head_dim: usize, mut f: impl FnMut(usize, usize, usize)) {
    for place in places {
        let (b, h) = (place / heads, place % heads);
        for t in 0..seq {
            f(h, ((b * seq + t) * heads + h) * head_dim, place * seq + t);
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
    space: Workspace,
    batch: usize,
    seq: usize,
    heads: usize,
    head_dim: usize,
    o: *mut T,
    lse: *mut f32,
    sinks: *const T,
) {
    space.split(batch * heads, seq * head_dim, |places, _| {
        each_query(places, seq, heads, head_dim, |h, row, at| {
            let (total, share) = joined(lse.add(at).read_unaligned(), T::load(sinks.add(h)));
            lse.add(at).write_unaligned(total);
            scale_row(head_dim, share, o.add(row), o.add(row));
        });
    });
}

/// Gradient of the sinks, summed in f64.
pub unsafe fn backward<T: Element>(
    space: Workspace,
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
    space.split(heads, batch * seq * head_dim, |part, _| {
        for h in part {
            let sink = T::load(sinks.add(h)) as f64;
            let mut sum = 0.0;
            for b in 0..batch {
                each_query(b * heads + h..b * heads + h + 1, seq, heads, head_dim, |_, row, at| {
                    let share = libm::exp(sink - lse.add(at).read_unaligned() as f64);
                    sum -= share * row_dot(d_o.add(row), o.add(row), head_dim) as f64;
                });
            }
            dsinks.add(h).write_unaligned(sum as f32);
        }
    });
}
