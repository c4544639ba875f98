//! Gradients of attention. Probabilities are recomputed from the logarithm of each row's sum.
//!
//! One pass runs over blocks of keys and, within, over the query heads that share them and their blocks of queries, in
//! ascending order: `dk` and `dv` are summed in f32 and rounded once. With f32 storage the same pass adds `dq` in
//! place, block of keys by block of keys; with bf16 a second pass over blocks of queries does, so that `dq` too is
//! rounded once.
use crate::ahead::Nothing;
use crate::attention::{cap, hide, padded, row_dot, Block, Shape, MAX_HEAD_DIM};
use crate::dropout::multiply;
use crate::dtype::{load_part, store_part, Element};
use crate::factors::{words, Widened};
use crate::math::exps_of_negatives;
use crate::pack::{pack, pack_left, spread};
use crate::scratch_areas;
use crate::simd::{F32s, LANES};
use crate::tile::{tile, tile_in_place, Left, MR, NR, SPREAD};

const QUERIES: usize = 64;
const KEYS: usize = 128;
const QUERY_ROWS: usize = QUERIES.next_multiple_of(MR);
const KEY_ROWS: usize = KEYS.next_multiple_of(MR);

/// Behind the last row: a panel of the last keys reads beyond, and exponentials one vector more.
const PADDING: usize = if MR > LANES { MR } else { LANES };

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

// Panels are named by their rows, then by the dim they run along.
scratch_areas! { Space {
    queries: QUERY_ROWS * MAX_HEAD_DIM * SPREAD, // panels of queries along the head dim
    gradients: QUERY_ROWS * MAX_HEAD_DIM * SPREAD, // `d_o`, likewise
    query_columns: QUERIES * MAX_HEAD_DIM,    // panels of columns of the head dim along the queries
    gradient_columns: QUERIES * MAX_HEAD_DIM, // `d_o`, likewise
    keys: KEYS * MAX_HEAD_DIM,                // panels of keys along the head dim
    values: KEYS * MAX_HEAD_DIM,              // likewise
    key_columns: KEYS * MAX_HEAD_DIM,         // panels of columns along the keys
    p: QUERY_ROWS * KEYS + PADDING,           // probabilities [QUERY_ROWS, KEYS]
    ds: QUERY_ROWS * KEYS + PADDING,          // gradients of scores, likewise
    left: MR * KEYS * SPREAD,                 // one panel of either
    factors: KEYS,                            // of a row
    slopes: KEYS,                             // derivatives of capped scores, of a row
    dq: QUERY_ROWS * MAX_HEAD_DIM,            // [QUERY_ROWS, padded]
    dk: KEY_ROWS * MAX_HEAD_DIM,              // [KEY_ROWS, padded]
    dv: KEY_ROWS * MAX_HEAD_DIM,              // [KEY_ROWS, padded]
    lse: QUERY_ROWS,                          // infinity where no key is seen
    delta: QUERY_ROWS,                         // sum of `d_o * o`
} }

/// `dq`, `dk`, `dv`, overwritten.
pub unsafe fn backward<T: Element>(s: &Shape, a: &Arrays<T>) {
    if T::IS_F32 {
        let row = s.heads * s.head_dim;
        s.space.split(s.batch * s.seq_q, row, |rows, _| {
            core::ptr::write_bytes(a.dq.add(rows.start * row), 0, rows.len() * row)
        });
    }
    let work = s.seq_q * s.seq_k * s.head_dim / 4;
    // With f32 storage, blocks of keys add to the same `dq` one after the other.
    let (blocks, together) = if T::IS_F32 { (1, s.seq_k) } else { (s.seq_k.div_ceil(KEYS), KEYS) };
    s.space.split(s.batch * s.kv_heads * blocks, s.group() * work / blocks.max(1), |part, space| {
        let w = Space::new(space);
        for place in part {
            let (row, first) = (place / blocks, place % blocks * together);
            let (batch, kv) = (row / s.kv_heads, row % s.kv_heads);
            for k0 in (first..s.seq_k.min(first + together)).step_by(KEYS) {
                let keys = KEYS.min(s.seq_k - k0);
                key_block(s, a, &w, Block { batch, head: 0, kv, q0: 0, queries: 0, k0, keys });
            }
        }
    });
    if T::IS_F32 {
        return;
    }
    let blocks = s.seq_q.div_ceil(QUERIES);
    s.space.split(s.batch * s.heads * blocks, work / blocks.max(1), |part, space| {
        let w = Space::new(space);
        for place in part {
            let (row, q0) = (place / blocks, place % blocks * QUERIES);
            let (batch, head) = (row / s.heads, row % s.heads);
            let queries = QUERIES.min(s.seq_q - q0);
            query_block(s, a, &w, Block { batch, head, kv: s.kv_of(head), q0, queries, k0: 0, keys: 0 });
        }
    });
}

/// `dk` and `dv` of one block of keys; with f32 storage also its share of `dq`.
#[inline(never)]
unsafe fn key_block<T: Element>(s: &Shape, a: &Arrays<T>, w: &Space, keys: Block) {
    let (dim, values) = (s.head_dim, s.value_dim);
    let rows = keys.keys.next_multiple_of(MR);
    pack_keys(s, a, w, keys);
    core::ptr::write_bytes(w.dk, 0, rows * padded(dim));
    core::ptr::write_bytes(w.dv, 0, rows * padded(values));
    for head in keys.kv * s.group()..(keys.kv + 1) * s.group() {
        for q0 in (0..s.seq_q).step_by(QUERIES) {
            let b = Block { head, q0, queries: QUERIES.min(s.seq_q - q0), ..keys };
            if s.sees(b, 0, s.seen(b, QUERIES)) {
                pack_queries(s, a, w, b);
                let (stride_q, stride_o) = (s.stride_q, s.heads * values);
                let q = a.q.add(s.queries_at(b, stride_q, dim));
                pack::<T, Widened, NR>(w.query_columns, q, 1, stride_q, dim, b.queries);
                let d_o = a.d_o.add(s.queries_at(b, stride_o, values));
                pack::<T, Widened, NR>(w.gradient_columns, d_o, 1, stride_o, values, b.queries);
                probabilities::<T>(s, w, b);
                add_keys(s, w, b, w.p, w.gradient_columns, w.dv, padded(values));
                add_keys(s, w, b, w.ds, w.query_columns, w.dk, padded(dim));
                if T::IS_F32 {
                    query_gradients(s, w, b, false);
                    add_queries(s, w, b, a.dq.add(s.queries_at(b, s.heads * dim, dim)) as *mut f32);
                }
            }
        }
    }
    for i in 0..keys.keys {
        let (dense_k, dense_v) = (s.kv_heads * dim, s.kv_heads * values);
        store_row(a.dk.add(s.keys_at(keys, dense_k, dim) + i * dense_k), w.dk.add(i * padded(dim)), dim);
        store_row(a.dv.add(s.keys_at(keys, dense_v, values) + i * dense_v), w.dv.add(i * padded(values)), values);
    }
}

/// `dq` of one block of queries.
#[inline(never)]
unsafe fn query_block<T: Element>(s: &Shape, a: &Arrays<T>, w: &Space, mut b: Block) {
    let (dim, padded, dense) = (s.head_dim, padded(s.head_dim), s.heads * s.head_dim);
    pack_queries(s, a, w, b);
    core::ptr::write_bytes(w.dq, 0, b.queries.next_multiple_of(MR) * padded);
    let end = s.visible(b.q0 + b.queries - 1, 0, s.seq_k);
    for k0 in (s.first_block(b, KEYS)..end).step_by(KEYS) {
        (b.k0, b.keys) = (k0, KEYS.min(end - k0));
        pack_keys(s, a, w, b);
        probabilities::<T>(s, w, b);
        query_gradients(s, w, b, true);
    }
    for i in 0..b.queries {
        store_row(a.dq.add(s.queries_at(b, dense, dim) + i * dense), w.dq.add(i * padded), dim);
    }
}

unsafe fn pack_keys<T: Element>(s: &Shape, a: &Arrays<T>, w: &Space, b: Block) {
    let k = a.k.add(s.keys_at(b, s.stride_k, s.head_dim));
    let v = a.v.add(s.keys_at(b, s.stride_v, s.value_dim));
    pack::<T, T::Factors, NR>(w.keys, k, s.stride_k, 1, b.keys, s.head_dim);
    pack::<T, T::Factors, NR>(w.values, v, s.stride_v, 1, b.keys, s.value_dim);
    pack::<T, Widened, NR>(w.key_columns, k, 1, s.stride_k, s.head_dim, b.keys);
}

unsafe fn pack_queries<T: Element>(s: &Shape, a: &Arrays<T>, w: &Space, b: Block) {
    let (values, dense) = (s.value_dim, s.heads * s.value_dim);
    let place = s.queries_at(b, dense, values);
    let (d_o, o) = (a.d_o.add(place), a.o.add(place));
    let q = a.q.add(s.queries_at(b, s.stride_q, s.head_dim));
    pack_left::<T>(w.queries, q, s.stride_q, 1, b.queries, s.head_dim);
    pack_left::<T>(w.gradients, d_o, dense, 1, b.queries, values);
    for i in 0..b.queries.next_multiple_of(MR) {
        let inside = i < b.queries;
        let lse = if inside { a.lse.add(s.rows_at(b) + i).read_unaligned() } else { f32::INFINITY };
        *w.lse.add(i) = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse };
        *w.delta.add(i) = if inside { row_dot(d_o.add(i * dense), o.add(i * dense), values) } else { 0.0 };
    }
}

/// Fills `p`, without what was dropped, and `ds`, with zeros for what a row does not see.
#[inline(never)]
unsafe fn probabilities<T: Element>(s: &Shape, w: &Space, b: Block) {
    let (dim, values) = (words::<T, T::Factors>(s.head_dim), words::<T, T::Factors>(s.value_dim));
    let all = b.keys.next_multiple_of(NR);
    for row in (0..b.queries).step_by(MR) {
        let seen = s.seen(b, row + MR - 1);
        let width = seen.next_multiple_of(NR);
        for c in (0..width).step_by(NR) {
            let place = row * KEYS + c;
            let (q, k) = (w.queries.add(row * dim * spread()), w.keys.add(c * dim));
            tile::<T::Factors>(dim, q, k, w.p.add(place), KEYS, s.scale, 0.0, &mut Nothing);
            let (d_o, v) = (w.gradients.add(row * values * spread()), w.values.add(c * values));
            tile::<T::Factors>(values, d_o, v, w.ds.add(place), KEYS, 1.0, 0.0, &mut Nothing);
        }
        for i in row..row + MR {
            let (p, ds) = (w.p.add(i * KEYS), w.ds.add(i * KEYS));
            let query = b.q0 + i;
            if s.softcap != 0.0 {
                cap(p, width, s.softcap, |j, slope| slope.store(w.slopes.add(j)));
            }
            hide(p, s.passed(b.batch, query, b.k0, seen), s.visible(query, b.k0, seen), width, s.mask_of(b, query));
            let (lse, delta) = (F32s::splat(*w.lse.add(i)), F32s::splat(*w.delta.add(i)));
            let scale = F32s::splat(s.scale);
            let drops = s.dropped(b, query, width, w.factors);
            if drops {
                multiply(width, ds, w.factors);
            }
            exps_of_negatives(
                width,
                |j| F32s::load(p.add(j)) - lse,
                |j, probability| {
                    probability.store(p.add(j));
                    (probability * (F32s::load(ds.add(j)) - delta) * scale).store(ds.add(j));
                },
            );
            if s.softcap != 0.0 {
                multiply(width, ds, w.slopes);
            }
            if drops {
                multiply(width, p, w.factors);
            }
            for j in (width..all).step_by(LANES) {
                F32s::zero().store(p.add(j));
                F32s::zero().store(ds.add(j));
            }
        }
    }
}

/// Adds `weights^T @ columns` to the sums of each key.
#[inline(never)]
unsafe fn add_keys(
    s: &Shape,
    w: &Space,
    b: Block,
    weights: *const f32,
    columns: *const f32,
    sums: *mut f32,
    padded: usize,
) {
    for row in (0..b.keys).step_by(MR) {
        // Queries before the first that sees any of these keys have zero weights.
        let first = (b.k0 + row + s.seq_q) as isize - s.seq_k as isize - b.q0 as isize;
        let first = if s.causal && first > 0 { (first as usize).min(b.queries) } else { 0 };
        if first >= b.queries {
            continue;
        }
        let left = Left { data: weights.add(first * KEYS + row), row: 1, step: KEYS };
        let left = left.prepared(b.queries - first, w.left);
        for c in (0..padded).step_by(NR) {
            let right = columns.add(c * b.queries + first * NR);
            tile_in_place(b.queries - first, left, right, sums.add(row * padded + c), padded, true);
        }
    }
}

/// `dq = ds @ k` of the block, in working space; added to what is there if that is kept.
#[inline(never)]
unsafe fn query_gradients(s: &Shape, w: &Space, b: Block, keep: bool) {
    let padded = padded(s.head_dim);
    for row in (0..b.queries).step_by(MR) {
        let seen = s.seen(b, row + MR - 1);
        let left = Left { data: w.ds.add(row * KEYS), row: KEYS, step: 1 }.prepared(seen, w.left);
        for c in (0..padded).step_by(NR) {
            tile_in_place(seen, left, w.key_columns.add(c * b.keys), w.dq.add(row * padded + c), padded, keep);
        }
    }
}

unsafe fn add_queries(s: &Shape, w: &Space, b: Block, dq: *mut f32) {
    let (dim, padded, dense) = (s.head_dim, padded(s.head_dim), s.heads * s.head_dim);
    for i in 0..b.queries {
        let to = dq.add(i * dense);
        for j in (0..dim).step_by(LANES) {
            let sum = load_part(to.add(j) as *const f32, dim - j) + F32s::load(w.dq.add(i * padded + j));
            store_part(to.add(j), sum, dim - j);
        }
    }
}

unsafe fn store_row<T: Element>(to: *mut T, from: *const f32, dim: usize) {
    for j in (0..dim).step_by(LANES) {
        store_part(to.add(j), F32s::load(from.add(j)), dim - j);
    }
}
