//! Gradients of attention. Probabilities are recomputed from the logarithm of each row's sum.
//!
//! One pass runs over blocks of keys and, within, over the query heads that share them and their blocks of queries, in
//! ascending order: `dk` and `dv` are summed in f32 and rounded once. With f32 storage the same pass adds `dq` in
//! place, block of keys by block of keys; with bf16 a second pass over blocks of queries does, so that `dq` too is
//! rounded once.
use crate::attention::{hide, row_dot, Shape, MAX_HEAD_DIM};
use crate::dtype::{load_part, store_part, Element};
use crate::math::exp_of_negative;
use crate::simd::F32x4;
use crate::tile::{pack, tile, MR, NR};
use crate::workspace::scratch;

const QUERIES: usize = 64;
const KEYS: usize = 128;

/// The arrays of one call.
#[derive(Clone, Copy)]
pub struct Arrays<T> {
    pub dq: *mut T,
    pub dk: *mut T,
    pub dv: *mut T,
    pub d_o: *const T,
    pub o: *const T,
    pub lse: *const f32,
    pub q: *const T,
    pub k: *const T,
    pub v: *const T,
}

/// Working space. Panels are named by their rows, then by the dim they run along.
struct Space {
    queries: *mut f32,          // panels of 4 queries along the head dim
    gradients: *mut f32,        // `d_o`, likewise
    query_columns: *mut f32,    // panels of 8 columns of the head dim along the queries
    gradient_columns: *mut f32, // `d_o`, likewise
    keys: *mut f32,             // panels of 8 keys along the head dim
    values: *mut f32,           // likewise
    key_columns: *mut f32,      // panels of 8 columns along the keys
    p: *mut f32,                // probabilities [QUERIES, KEYS]
    ds: *mut f32,               // gradients of scores [QUERIES, KEYS]
    panel: *mut f32,            // packed part of `p` or `ds`
    dq: *mut f32,               // [QUERIES, padded]
    dk: *mut f32,               // [KEYS, padded]
    dv: *mut f32,               // [KEYS, padded]
    lse: *mut f32,              // [QUERIES], infinity where no key is seen
    delta: *mut f32,            // [QUERIES], sum of `d_o * o`
}

impl Space {
    fn new() -> Space {
        let mut next = 0;
        let mut take = |words: usize| {
            next += words;
            scratch().wrapping_add(next - words)
        };
        let (rows, columns, square) = (QUERIES * MAX_HEAD_DIM, KEYS * MAX_HEAD_DIM, QUERIES * KEYS);
        Space {
            queries: take(rows),
            gradients: take(rows),
            query_columns: take(rows),
            gradient_columns: take(rows),
            keys: take(columns),
            values: take(columns),
            key_columns: take(columns),
            p: take(square),
            ds: take(square),
            panel: take(square),
            dq: take(rows),
            dk: take(columns),
            dv: take(columns),
            lse: take(QUERIES),
            delta: take(QUERIES),
        }
    }
}

/// A block of queries of one head against a block of keys.
#[derive(Clone, Copy)]
struct Block {
    batch: usize,
    head: usize,
    q0: usize,
    queries: usize,
    k0: usize,
    keys: usize,
}

/// `dq`, `dk`, `dv`, overwritten.
pub unsafe fn backward<T: Element>(s: &Shape, a: &Arrays<T>) {
    let w = Space::new();
    if T::IS_F32 {
        core::ptr::write_bytes(a.dq, 0, s.batch * s.seq_q * s.dense(s.heads));
    }
    for batch in 0..s.batch {
        for kv in 0..s.kv_heads {
            let mut k0 = 0;
            while k0 < s.seq_k {
                key_block(s, a, &w, batch, kv, k0, KEYS.min(s.seq_k - k0));
                k0 += KEYS;
            }
        }
        if !T::IS_F32 {
            for head in 0..s.heads {
                let mut q0 = 0;
                while q0 < s.seq_q {
                    query_block(s, a, &w, batch, head, q0, QUERIES.min(s.seq_q - q0));
                    q0 += QUERIES;
                }
            }
        }
    }
}

/// `dk` and `dv` of one block of keys; with f32 storage also its share of `dq`.
#[inline(never)]
unsafe fn key_block<T: Element>(s: &Shape, a: &Arrays<T>, w: &Space, batch: usize, kv: usize, k0: usize, keys: usize) {
    let (dim, padded) = (s.head_dim, s.padded());
    let rows = keys.next_multiple_of(MR);
    pack_keys(s, a, w, batch, kv, k0, keys);
    core::ptr::write_bytes(w.dk, 0, rows * padded);
    core::ptr::write_bytes(w.dv, 0, rows * padded);
    for head in kv * s.group()..(kv + 1) * s.group() {
        let mut q0 = 0;
        while q0 < s.seq_q {
            let queries = QUERIES.min(s.seq_q - q0);
            let block = Block { batch, head, q0, queries, k0, keys };
            if s.visible(q0 + queries - 1, k0, keys) > 0 {
                pack_queries(s, a, w, block);
                pack::<T, NR>(w.query_columns, at(a.q, s, block, s.stride_q), 1, s.stride_q, dim, queries);
                let dense = s.dense(s.heads);
                pack::<T, NR>(w.gradient_columns, at(a.d_o, s, block, dense), 1, dense, dim, queries);
                probabilities(s, w, block);
                add_keys(s, w, block, w.p, w.gradient_columns, w.dv);
                add_keys(s, w, block, w.ds, w.query_columns, w.dk);
                if T::IS_F32 {
                    query_gradients(s, w, block, 0.0);
                    add_queries(s, w, block, at(a.dq, s, block, dense) as *mut f32);
                }
            }
            q0 += QUERIES;
        }
    }
    let dense = s.dense(s.kv_heads);
    let place = (batch * s.seq_k + k0) * dense + kv * dim;
    for i in 0..keys {
        store_row(a.dk.add(place + i * dense), w.dk.add(i * padded), dim);
        store_row(a.dv.add(place + i * dense), w.dv.add(i * padded), dim);
    }
}

/// `dq` of one block of queries.
#[inline(never)]
unsafe fn query_block<T: Element>(
    s: &Shape,
    a: &Arrays<T>,
    w: &Space,
    batch: usize,
    head: usize,
    q0: usize,
    queries: usize,
) {
    let (dim, padded, dense) = (s.head_dim, s.padded(), s.dense(s.heads));
    let mut block = Block { batch, head, q0, queries, k0: 0, keys: 0 };
    pack_queries(s, a, w, block);
    core::ptr::write_bytes(w.dq, 0, queries.next_multiple_of(MR) * padded);
    let end = s.visible(q0 + queries - 1, 0, s.seq_k);
    while block.k0 < end {
        block.keys = KEYS.min(end - block.k0);
        let kv = head.checked_div(s.group()).unwrap_or(0);
        pack_keys(s, a, w, batch, kv, block.k0, block.keys);
        probabilities(s, w, block);
        query_gradients(s, w, block, 1.0);
        block.k0 += KEYS;
    }
    let to = at(a.dq, s, block, dense) as *mut T;
    for i in 0..queries {
        store_row(to.add(i * dense), w.dq.add(i * padded), dim);
    }
}

/// First element of a block of queries of one head, in an array with this row stride.
#[inline(always)]
unsafe fn at<T>(array: *const T, s: &Shape, b: Block, stride: usize) -> *const T {
    array.add((b.batch * s.seq_q + b.q0) * stride + b.head * s.head_dim)
}

unsafe fn pack_keys<T: Element>(s: &Shape, a: &Arrays<T>, w: &Space, batch: usize, kv: usize, k0: usize, keys: usize) {
    let k = a.k.add((batch * s.seq_k + k0) * s.stride_k + kv * s.head_dim);
    let v = a.v.add((batch * s.seq_k + k0) * s.stride_v + kv * s.head_dim);
    pack::<T, NR>(w.keys, k, s.stride_k, 1, keys, s.head_dim);
    pack::<T, NR>(w.values, v, s.stride_v, 1, keys, s.head_dim);
    pack::<T, NR>(w.key_columns, k, 1, s.stride_k, s.head_dim, keys);
}

unsafe fn pack_queries<T: Element>(s: &Shape, a: &Arrays<T>, w: &Space, b: Block) {
    let dense = s.dense(s.heads);
    let (d_o, o) = (at(a.d_o, s, b, dense), at(a.o, s, b, dense));
    pack::<T, MR>(w.queries, at(a.q, s, b, s.stride_q), s.stride_q, 1, b.queries, s.head_dim);
    pack::<T, MR>(w.gradients, d_o, dense, 1, b.queries, s.head_dim);
    for i in 0..b.queries.next_multiple_of(MR) {
        let inside = i < b.queries;
        let lse = if inside {
            a.lse.add((b.batch * s.heads + b.head) * s.seq_q + b.q0 + i).read_unaligned()
        } else {
            f32::INFINITY
        };
        *w.lse.add(i) = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse };
        *w.delta.add(i) = if inside { row_dot(d_o.add(i * dense), o.add(i * dense), s.head_dim) } else { 0.0 };
    }
}

/// Fills `p` and `ds`, with zeros for what a row does not see.
#[inline(never)]
unsafe fn probabilities(s: &Shape, w: &Space, b: Block) {
    let dim = s.head_dim;
    let all = b.keys.next_multiple_of(NR);
    let mask = if s.key_mask.is_null() { s.key_mask } else { s.key_mask.add(b.batch * s.seq_k + b.k0) };
    let mut row = 0;
    while row < b.queries {
        let seen = s.visible(b.q0 + (row + MR).min(b.queries) - 1, b.k0, b.keys);
        let width = seen.next_multiple_of(NR);
        let mut c = 0;
        while c < width {
            let place = row * KEYS + c;
            tile(dim, w.queries.add(row * dim), w.keys.add(c * dim), w.p.add(place), KEYS, s.scale, 0.0);
            tile(dim, w.gradients.add(row * dim), w.values.add(c * dim), w.ds.add(place), KEYS, 1.0, 0.0);
            c += NR;
        }
        for i in row..row + MR {
            let (p, ds) = (w.p.add(i * KEYS), w.ds.add(i * KEYS));
            hide(p, s.visible(b.q0 + i, b.k0, seen), width, mask);
            let (lse, delta) = (F32x4::splat(*w.lse.add(i)), F32x4::splat(*w.delta.add(i)));
            let scale = F32x4::splat(s.scale);
            let mut j = 0;
            while j < width {
                let probability = exp_of_negative(F32x4::load(p.add(j)) - lse);
                probability.store(p.add(j));
                (probability * (F32x4::load(ds.add(j)) - delta) * scale).store(ds.add(j));
                j += 4;
            }
            while j < all {
                F32x4::zero().store(p.add(j));
                F32x4::zero().store(ds.add(j));
                j += 4;
            }
        }
        row += MR;
    }
}

/// Adds `weights^T @ columns` to the sums of each key.
#[inline(never)]
unsafe fn add_keys(s: &Shape, w: &Space, b: Block, weights: *const f32, columns: *const f32, sums: *mut f32) {
    let padded = s.padded();
    pack::<f32, MR>(w.panel, weights, 1, KEYS, b.keys, b.queries);
    let mut row = 0;
    while row < b.keys {
        // Queries before the first that sees any of these keys have zero weights.
        let first = (b.k0 + row + s.seq_q) as isize - s.seq_k as isize - b.q0 as isize;
        let first = if s.causal && first > 0 { (first as usize).min(b.queries) } else { 0 };
        let left = w.panel.add(row * b.queries + first * MR);
        let mut c = 0;
        while c < padded && first < b.queries {
            let right = columns.add(c * b.queries + first * NR);
            tile(b.queries - first, left, right, sums.add(row * padded + c), padded, 1.0, 1.0);
            c += NR;
        }
        row += MR;
    }
}

/// `dq = ds @ k + beta * dq` of the block, in working space.
#[inline(never)]
unsafe fn query_gradients(s: &Shape, w: &Space, b: Block, beta: f32) {
    let padded = s.padded();
    let mut row = 0;
    while row < b.queries {
        let seen = s.visible(b.q0 + (row + MR).min(b.queries) - 1, b.k0, b.keys);
        pack::<f32, MR>(w.panel, w.ds.add(row * KEYS), KEYS, 1, MR, seen);
        let mut c = 0;
        while c < padded {
            tile(seen, w.panel, w.key_columns.add(c * b.keys), w.dq.add(row * padded + c), padded, 1.0, beta);
            c += NR;
        }
        row += MR;
    }
}

unsafe fn add_queries(s: &Shape, w: &Space, b: Block, dq: *mut f32) {
    let (dim, padded, dense) = (s.head_dim, s.padded(), s.dense(s.heads));
    for i in 0..b.queries {
        let to = dq.add(i * dense);
        let mut j = 0;
        while j < dim {
            let sum = load_part(to.add(j) as *const f32, dim - j) + F32x4::load(w.dq.add(i * padded + j));
            store_part(to.add(j), sum, dim - j);
            j += 4;
        }
    }
}

unsafe fn store_row<T: Element>(to: *mut T, from: *const f32, dim: usize) {
    let mut j = 0;
    while j < dim {
        store_part(to.add(j), F32x4::load(from.add(j)), dim - j);
        j += 4;
    }
}
