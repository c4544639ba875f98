//! Attention in the flash manner: blocks of queries against blocks of keys with an online softmax, so that working
//! space does not grow with the sequence.
//!
//! Scores are products of packed panels (`tile.rs`). In a causal call a row panel meets no key that all its rows
//! cannot see. Each query head is computed alone, keys in ascending order: nothing depends on the batch or the heads.
use crate::dtype::{load_part, store_part, Element};
use crate::math::exp_of_negative as exp;
use crate::scratch_areas;
use crate::simd::{max, F32x4};
use crate::tile::{pack, tile, MR, NR};

/// Largest head dim.
pub const MAX_HEAD_DIM: usize = 256;
const QUERIES: usize = 128;
const KEYS: usize = 64;

/// Sizes, strides and switches of one call; see `attention` in `src/device/kernels/products.ts`.
#[derive(Clone, Copy)]
pub struct Shape {
    pub batch: usize,
    pub seq_q: usize,
    pub seq_k: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub stride_q: usize,
    pub stride_k: usize,
    pub stride_v: usize,
    pub scale: f32,
    pub causal: bool,
    pub key_mask: *const u8,
}

impl Shape {
    /// How many of the keys from `key` on, at most `count`, query `query` sees by causality.
    #[inline(always)]
    pub fn visible(&self, query: usize, key: usize, count: usize) -> usize {
        if !self.causal {
            return count;
        }
        let end = (query + 1 + self.seq_k) as isize - self.seq_q as isize - key as isize;
        (end.max(0) as usize).min(count)
    }
    /// The same of a block's keys for its row `row`, or for the last row that it has before that.
    #[inline(always)]
    pub fn seen(&self, b: Block, row: usize) -> usize {
        self.visible(b.q0 + row.min(b.queries - 1), b.k0, b.keys)
    }
    /// Head dim rounded up to whole tiles.
    #[inline(always)]
    pub fn padded(&self) -> usize {
        self.head_dim.next_multiple_of(NR)
    }
    /// Row stride of dense arrays with this many heads.
    #[inline(always)]
    pub fn dense(&self, heads: usize) -> usize {
        heads * self.head_dim
    }
    /// Query heads that share a kv head.
    #[inline(always)]
    pub fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }
    /// The kv head that a query head reads.
    #[inline(always)]
    pub fn kv_of(&self, head: usize) -> usize {
        head.checked_div(self.group()).unwrap_or(0)
    }
    /// Where a block's queries begin in an array [batch, seq_q, heads * head_dim] with this row stride.
    #[inline(always)]
    pub fn queries_at(&self, b: Block, stride: usize) -> usize {
        (b.batch * self.seq_q + b.q0) * stride + b.head * self.head_dim
    }
    /// Where a block's keys begin in an array [batch, seq_k, kv_heads * head_dim] with this row stride.
    #[inline(always)]
    pub fn keys_at(&self, b: Block, stride: usize) -> usize {
        (b.batch * self.seq_k + b.k0) * stride + b.kv * self.head_dim
    }
    /// Where a block's rows begin in an array [batch, heads, seq_q].
    #[inline(always)]
    pub fn rows_at(&self, b: Block) -> usize {
        (b.batch * self.heads + b.head) * self.seq_q + b.q0
    }
    /// The mask of a block's keys, or null.
    #[inline(always)]
    pub unsafe fn mask_of(&self, b: Block) -> *const u8 {
        if self.key_mask.is_null() {
            return self.key_mask;
        }
        self.key_mask.add(b.batch * self.seq_k + b.k0)
    }
}

/// A block of queries of one head against a block of keys.
#[derive(Clone, Copy)]
pub struct Block {
    pub batch: usize,
    pub head: usize,
    /// The kv head that it reads.
    pub kv: usize,
    pub q0: usize,
    pub queries: usize,
    pub k0: usize,
    pub keys: usize,
}

/// Sets scores of keys that a row must not see to minus infinity: beyond `visible`, and those masked out.
/// `row` holds `width` scores, a multiple of 4; `mask` is null or holds `visible`.
#[inline(always)]
pub unsafe fn hide(row: *mut f32, visible: usize, width: usize, mask: *const u8) {
    for j in visible..width {
        *row.add(j) = f32::NEG_INFINITY;
    }
    if !mask.is_null() {
        for j in 0..visible {
            if *mask.add(j) == 0 {
                *row.add(j) = f32::NEG_INFINITY;
            }
        }
    }
}

scratch_areas! { Forward {
    queries: QUERIES * MAX_HEAD_DIM, // panels of 4 rows
    output: QUERIES * MAX_HEAD_DIM,  // [QUERIES, padded]
    keys: KEYS * MAX_HEAD_DIM,       // panels of 8 keys
    values: KEYS * MAX_HEAD_DIM,     // panels of 8 columns
    scores: MR * KEYS,               // [4, KEYS]
    weights: MR * KEYS,              // one panel of 4 rows
    tops: QUERIES,
    sums: QUERIES,
} }

/// `o = softmax(scale * q k^T) v` a head, and the logarithm of each row's sum (minus infinity where no key is seen).
pub unsafe fn forward<T: Element>(s: &Shape, o: *mut T, lse: *mut f32, q: *const T, k: *const T, v: *const T) {
    for batch in 0..s.batch {
        for head in 0..s.heads {
            let kv = s.kv_of(head);
            for q0 in (0..s.seq_q).step_by(QUERIES) {
                let queries = QUERIES.min(s.seq_q - q0);
                let b = Block { batch, head, kv, q0, queries, k0: 0, keys: 0 };
                block(s, b, o.add(s.queries_at(b, s.dense(s.heads))), lse.add(s.rows_at(b)), q, k, v);
            }
        }
    }
}

/// A block of queries against all keys; `o` and `lse` are its own.
#[inline(never)]
unsafe fn block<T: Element>(s: &Shape, mut b: Block, o: *mut T, lse: *mut f32, q: *const T, k: *const T, v: *const T) {
    let f = Forward::new();
    let (dim, padded, queries) = (s.head_dim, s.padded(), b.queries);
    pack::<T, MR>(f.queries, q.add(s.queries_at(b, s.stride_q)), s.stride_q, 1, queries, dim);
    core::ptr::write_bytes(f.output, 0, queries.next_multiple_of(MR) * padded);
    for i in 0..queries.next_multiple_of(MR) {
        *f.tops.add(i) = f32::NEG_INFINITY;
        *f.sums.add(i) = 0.0;
    }
    let end = s.visible(b.q0 + queries - 1, 0, s.seq_k);
    for k0 in (0..end).step_by(KEYS) {
        (b.k0, b.keys) = (k0, KEYS.min(end - k0));
        pack::<T, NR>(f.keys, k.add(s.keys_at(b, s.stride_k)), s.stride_k, 1, b.keys, dim);
        pack::<T, NR>(f.values, v.add(s.keys_at(b, s.stride_v)), 1, s.stride_v, dim, b.keys);
        for row in (0..queries).step_by(MR) {
            row_panel(s, &f, b, row);
        }
    }
    for i in 0..queries {
        let (top, sum) = (*f.tops.add(i), *f.sums.add(i));
        let seen = sum != 0.0;
        lse.add(i).write_unaligned(if seen { top + libm::log(sum as f64) as f32 } else { f32::NEG_INFINITY });
        let inverse = F32x4::splat(if seen { 1.0 / sum } else { 0.0 });
        let to = o.add(i * s.dense(s.heads));
        for j in (0..dim).step_by(4) {
            store_part(to.add(j), F32x4::load(f.output.add(i * padded + j)) * inverse, dim - j);
        }
    }
}

/// Four query rows against one block of keys: scores, online softmax, weighted values.
#[inline(always)]
unsafe fn row_panel(s: &Shape, f: &Forward, b: Block, row: usize) {
    let (dim, padded) = (s.head_dim, s.padded());
    let seen = s.seen(b, row + MR - 1);
    if seen == 0 {
        return;
    }
    let width = seen.next_multiple_of(NR);
    for c in (0..width).step_by(NR) {
        tile(dim, f.queries.add(row * dim), f.keys.add(c * dim), f.scores.add(c), KEYS, s.scale, 0.0);
    }
    for i in 0..MR {
        let scores = f.scores.add(i * KEYS);
        hide(scores, s.visible(b.q0 + row + i, b.k0, seen), width, s.mask_of(b));
        let mut top = F32x4::splat(*f.tops.add(row + i));
        for j in (0..width).step_by(4) {
            top = top.max_of_numbers(F32x4::load(scores.add(j)));
        }
        let (old, top) = (*f.tops.add(row + i), top.fold(max));
        // While a row has seen no key, its weights are e^(-inf - 0) = 0; -inf - -inf would be NaN.
        let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let base4 = F32x4::splat(base);
        let mut sum = F32x4::zero();
        for j in (0..width).step_by(4) {
            let e = exp(F32x4::load(scores.add(j)) - base4);
            e.store(scores.add(j));
            sum = sum + e;
        }
        let shrink = if old == top { 1.0 } else { exp(F32x4::splat(old - base)).lanes()[0] };
        *f.tops.add(row + i) = top;
        *f.sums.add(row + i) = *f.sums.add(row + i) * shrink + sum.sum();
        if shrink != 1.0 {
            let (out, shrink) = (f.output.add((row + i) * padded), F32x4::splat(shrink));
            for j in (0..padded).step_by(4) {
                (F32x4::load(out.add(j)) * shrink).store(out.add(j));
            }
        }
    }
    pack::<f32, MR>(f.weights, f.scores, KEYS, 1, MR, seen);
    for c in (0..padded).step_by(NR) {
        // A panel of values is as deep as the block, of which only the keys seen are used.
        tile(seen, f.weights, f.values.add(c * b.keys), f.output.add(row * padded + c), padded, 1.0, 1.0);
    }
}

/// Sum over the head dim of `a * b`, for one row.
#[inline(always)]
pub unsafe fn row_dot<T: Element>(a: *const T, b: *const T, dim: usize) -> f32 {
    crate::elementwise::dot_f64(dim, |i, count| (load_part(a.add(i), count), load_part(b.add(i), count))) as f32
}
