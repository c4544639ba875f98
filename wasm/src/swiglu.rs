//! `silu(gate) * up`, and its backward.
use crate::dtype::{load_part, store_part, Element};
use crate::elementwise::zip;
use crate::math::{sigmoid, silu};
use crate::simd::{F32s, LANES};
use core::ops::Range;

/// `y = silu(gate) * up`.
pub unsafe fn forward<T: Element>(n: Range<usize>, y: *mut T, gate: *const T, up: *const T) {
    zip(y.add(n.start), gate.add(n.start), up.add(n.start), n.len(), |g, u| silu(g) * u);
}

/// Gradients of both inputs; they may overwrite them.
pub unsafe fn backward<T: Element>(
    n: Range<usize>,
    dgate: *mut T,
    dup: *mut T,
    dy: *const T,
    gate: *const T,
    up: *const T,
) {
    let one = F32s::splat(1.0);
    for i in n.clone().step_by(LANES) {
        let count = (n.end - i).min(LANES);
        let (g, u, d) = (load_part(gate.add(i), count), load_part(up.add(i), count), load_part(dy.add(i), count));
        let s = sigmoid(g);
        store_part(dgate.add(i), d * u * s * (one + g * (one - s)), count);
        store_part(dup.add(i), d * silu(g), count);
    }
}
