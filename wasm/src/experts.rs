//! Tokens to experts and back, and matrix products of each expert's rows. Where an expert's rows begin and end lies in device
//! memory: nothing that a caller must know depends on the routing.
use crate::attention::row_dot;
use crate::dtype::{load_part, store_part, Element, F32};
use crate::elementwise::{scale_row, zip};
use crate::math::sigmoid;
use crate::matmul;
use crate::reduce::columns_f64;
use crate::simd::{F32s, LANES};
use crate::strided::gather;
use crate::workspace::Workspace;
use core::ops::Range;

/// Sorts pairs of token and expert by the expert, in their order otherwise: the place of each pair, and where experts end.
pub unsafe fn sort(pairs: usize, experts: usize, places: *mut i32, ends: *mut i32, chosen: *const i32) {
    core::ptr::write_bytes(ends, 0, experts);
    if experts == 0 {
        return;
    }
    let expert = |i: usize| (chosen.add(i).read_unaligned() as isize as usize).min(experts - 1);
    let add = |e: usize, by: i32| {
        let at = ends.add(e);
        at.write_unaligned(at.read_unaligned() + by);
        at.read_unaligned()
    };
    for i in 0..pairs {
        add(expert(i), 1);
    }
    for e in 1..experts {
        add(e, ends.add(e - 1).read_unaligned());
    }
    // From the end on, so that the ends become beginnings.
    for i in (0..pairs).rev() {
        places.add(i).write_unaligned(add(expert(i), -1));
    }
    for e in 0..experts {
        let end = if e + 1 < experts { ends.add(e + 1).read_unaligned() } else { pairs as i32 };
        ends.add(e).write_unaligned(end);
    }
}

#[inline(always)]
unsafe fn weight_of(weights: *const f32, pair: usize) -> f32 {
    if weights.is_null() {
        1.0
    } else {
        weights.add(pair).read_unaligned()
    }
}

/// `y[t] = Σ_j weights[t, j] x[places[t, j]]`, each sum rounded once.
pub unsafe fn combine<T: Element>(
    rows: Range<usize>,
    count: usize,
    cols: usize,
    y: *mut T,
    x: *const T,
    places: *const i32,
    weights: *const f32,
) {
    for t in rows {
        for i in (0..cols).step_by(LANES) {
            let mut sum = F32s::zero();
            for pair in t * count..(t + 1) * count {
                let row = x.add(places.add(pair).read_unaligned() as usize * cols);
                sum = F32s::splat(weight_of(weights, pair)).madd(load_part(row.add(i), cols - i), sum);
            }
            store_part(y.add(t * cols + i), sum, cols - i);
        }
    }
}

/// Gradients of [`combine`]; `dx` and `dweights` may be null.
pub unsafe fn combine_backward<T: Element>(
    rows: Range<usize>,
    count: usize,
    cols: usize,
    dx: *mut T,
    dweights: *mut f32,
    dy: *const T,
    x: *const T,
    places: *const i32,
    weights: *const f32,
) {
    for pair in rows.start * count..rows.end * count {
        let place = places.add(pair).read_unaligned() as usize * cols;
        let dy = dy.add(pair / count * cols);
        if !dweights.is_null() {
            let x = x.add(place);
            dweights.add(pair).write_unaligned(row_dot(dy, x, cols));
        }
        if !dx.is_null() {
            scale_row(cols, weight_of(weights, pair), dx.add(place), dy);
        }
    }
}

/// Runs `f` with the number of each group, its first row, and how many it has.
#[inline(always)]
unsafe fn each_group(groups: usize, rows: usize, ends: *const i32, mut f: impl FnMut(usize, usize, usize)) {
    let mut first = 0;
    for g in 0..groups {
        let end = (ends.add(g).read_unaligned() as usize).clamp(first, rows);
        f(g, first, end - first);
        first = end;
    }
}

fn width_of(dtype: u32) -> usize {
    if dtype == F32 {
        4
    } else {
        2
    }
}

/// `c = a @ op(b[g])` for the rows of each group.
pub unsafe fn product(
    space: Workspace,
    dtype: u32,
    trans_b: bool,
    groups: usize,
    rows: usize,
    n: usize,
    k: usize,
    c: *mut u8,
    a: *const u8,
    b: *const u8,
    ends: *const i32,
) {
    let w = width_of(dtype);
    each_group(groups, rows, ends, |g, first, m| {
        let (a, b, c) = (a.add(first * k * w), b.add(g * n * k * w), c.add(first * n * w));
        let ldb = if trans_b { k } else { n };
        matmul::batch(space, dtype, dtype, false, trans_b, m, n, k, 1.0, 0.0, k, ldb, n, 1, 0, 0, 0, a, b, c);
    });
}

/// `c[g] = aᵀ @ b` over the rows of each group; zeros where it has none.
pub unsafe fn outer(
    space: Workspace,
    dtype: u32,
    out_dtype: u32,
    groups: usize,
    rows: usize,
    m: usize,
    n: usize,
    c: *mut u8,
    a: *const u8,
    b: *const u8,
    ends: *const i32,
) {
    let w = width_of(dtype);
    each_group(groups, rows, ends, |g, first, k| {
        let (a, b, c) = (a.add(first * m * w), b.add(first * n * w), c.add(g * m * n * width_of(out_dtype)));
        matmul::batch(space, dtype, out_dtype, true, false, m, n, k, 1.0, 0.0, m, n, n, 1, 0, 0, 0, a, b, c);
    });
}

/// `x[r] += bias[g]` for the rows of each group.
pub unsafe fn add_bias<T: Element>(
    space: Workspace,
    groups: usize,
    rows: usize,
    cols: usize,
    x: *mut T,
    bias: *const T,
    ends: *const i32,
) {
    each_group(groups, rows, ends, |g, first, count| {
        space.split(count, cols, |rows, _| {
            for r in rows {
                let x = x.add((first + r) * cols);
                zip(x, x, bias.add(g * cols), cols, |x, b| x + b);
            }
        });
    });
}

/// Sums of the rows of each group, in f64.
pub unsafe fn sums(
    space: Workspace,
    groups: usize,
    rows: usize,
    cols: usize,
    y: *mut f32,
    x: *const f32,
    ends: *const i32,
) {
    each_group(groups, rows, ends, |g, first, count| {
        columns_f64(space, y.add(g * cols), count, cols, |r, j, n| load_part(x.add((first + r) * cols + j), n));
    });
}

/// Of the gates and ups of some pairs: the result, and what each gives of a gradient of 1. Once for all dtypes.
#[inline(never)]
unsafe fn gated(gate: F32s, up: F32s, alpha: f32, limit: f32) -> [F32s; 3] {
    let (one, alpha, top) = (F32s::splat(1.0), F32s::splat(alpha), F32s::splat(limit));
    let (g, u) = (gate.at_most(limit), up.at_least(-limit).at_most(limit) + one);
    let s = sigmoid(alpha * g);
    // Where a clamp holds, and at its limits, nothing flows back.
    let dgate = top.le(gate).select(F32s::zero(), u * s * (one + alpha * g * (one - s)));
    let dup = top.le(up.abs()).select(F32s::zero(), g * s);
    [u * (g * s), dgate, dup]
}

/// The gates (`half` 0) or ups (1) of some pairs, which come in turn.
unsafe fn half_of<T: Element>(gate_up: *const T, half: usize, count: usize) -> F32s {
    gather(gate_up.add(half), 2, count)
}

/// `y = (clamp(up) + 1) * g * sigmoid(alpha g)` of `g = min(gate, limit)`; gates and ups come in turn.
pub unsafe fn clamped_swiglu<T: Element>(n: Range<usize>, alpha: f32, limit: f32, y: *mut T, gate_up: *const T) {
    for i in n.clone().step_by(LANES) {
        let (from, count) = (gate_up.add(2 * i), (n.end - i).min(LANES));
        let [value, _, _] = gated(half_of(from, 0, count), half_of(from, 1, count), alpha, limit);
        store_part(y.add(i), value, count);
    }
}

/// Gradient of [`clamped_swiglu`].
pub unsafe fn clamped_swiglu_backward<T: Element>(
    n: Range<usize>,
    alpha: f32,
    limit: f32,
    dgate_up: *mut T,
    dy: *const T,
    gate_up: *const T,
) {
    for i in n.clone().step_by(LANES) {
        let (from, count) = (gate_up.add(2 * i), (n.end - i).min(LANES));
        let [_, dgate, dup] = gated(half_of(from, 0, count), half_of(from, 1, count), alpha, limit);
        let d = load_part(dy.add(i), count);
        let (dgate, dup) = ((d * dgate).lanes(), (d * dup).lanes());
        for l in 0..count {
            T::store(dgate_up.add(2 * (i + l)), dgate[l]);
            T::store(dgate_up.add(2 * (i + l) + 1), dup[l]);
        }
    }
}
