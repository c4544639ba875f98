//! Attention in the flash manner: blocks of queries against blocks of keys with an online softmax, so that working
//! space does not grow with the sequence.
//!
//! Scores are products of packed panels (`tile.rs`). In a causal call a row panel meets no key that all its rows
//! cannot see. Each query head is computed alone, keys in ascending order: nothing depends on the batch or the heads.
use crate::dtype::{load_part, store_part, Element};
use crate::math::exp_of_negative as exp;
use crate::simd::F32x4;
use crate::tile::{pack, tile, MR, NR};
use crate::workspace::scratch;

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
        if end <= 0 {
            0
        } else {
            (end as usize).min(count)
        }
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
}

/// Sets scores of keys that a row must not see to minus infinity: beyond `visible`, and those masked out.
///
/// # Safety
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

struct Forward {
    queries: *mut f32, // panels of 4 rows
    output: *mut f32,  // [QUERIES, padded]
    keys: *mut f32,    // panels of 8 keys
    values: *mut f32,  // panels of 8 columns
    scores: *mut f32,  // [4, KEYS]
    weights: *mut f32, // one panel of 4 rows
    tops: *mut f32,    // [QUERIES]
    sums: *mut f32,    // [QUERIES]
}

impl Forward {
    fn new() -> Forward {
        let at = |words: usize| scratch().wrapping_add(words);
        let rows = QUERIES * MAX_HEAD_DIM;
        let columns = KEYS * MAX_HEAD_DIM;
        Forward {
            queries: at(0),
            output: at(rows),
            keys: at(2 * rows),
            values: at(2 * rows + columns),
            scores: at(2 * rows + 2 * columns),
            weights: at(2 * rows + 2 * columns + MR * KEYS),
            tops: at(2 * rows + 2 * columns + 2 * MR * KEYS),
            sums: at(2 * rows + 2 * columns + 2 * MR * KEYS + QUERIES),
        }
    }
}

/// `o = softmax(scale * q k^T) v` a head, and the logarithm of each row's sum (minus infinity where no key is seen).
pub unsafe fn forward<T: Element>(s: &Shape, o: *mut T, lse: *mut f32, q: *const T, k: *const T, v: *const T) {
    for b in 0..s.batch {
        for h in 0..s.heads {
            let kv = h.checked_div(s.group()).unwrap_or(0);
            let mut q0 = 0;
            while q0 < s.seq_q {
                let queries = QUERIES.min(s.seq_q - q0);
                let q = q.add((b * s.seq_q + q0) * s.stride_q + h * s.head_dim);
                let k = k.add(b * s.seq_k * s.stride_k + kv * s.head_dim);
                let v = v.add(b * s.seq_k * s.stride_v + kv * s.head_dim);
                let mask = if s.key_mask.is_null() { s.key_mask } else { s.key_mask.add(b * s.seq_k) };
                let o = o.add((b * s.seq_q + q0) * s.dense(s.heads) + h * s.head_dim);
                let lse = lse.add((b * s.heads + h) * s.seq_q + q0);
                query_block(s, q0, queries, o, lse, q, k, v, mask);
                q0 += QUERIES;
            }
        }
    }
}

#[inline(never)]
unsafe fn query_block<T: Element>(
    s: &Shape,
    q0: usize,
    queries: usize,
    o: *mut T,
    lse: *mut f32,
    q: *const T,
    k: *const T,
    v: *const T,
    mask: *const u8,
) {
    let f = Forward::new();
    let (dim, padded) = (s.head_dim, s.padded());
    pack::<T, MR>(f.queries, q, s.stride_q, 1, queries, dim);
    core::ptr::write_bytes(f.output, 0, queries.next_multiple_of(MR) * padded);
    for i in 0..queries.next_multiple_of(MR) {
        *f.tops.add(i) = f32::NEG_INFINITY;
        *f.sums.add(i) = 0.0;
    }
    let end = s.visible(q0 + queries - 1, 0, s.seq_k);
    let mut k0 = 0;
    while k0 < end {
        let keys = KEYS.min(end - k0);
        pack::<T, NR>(f.keys, k.add(k0 * s.stride_k), s.stride_k, 1, keys, dim);
        pack::<T, NR>(f.values, v.add(k0 * s.stride_v), 1, s.stride_v, dim, keys);
        let mask = if mask.is_null() { mask } else { mask.add(k0) };
        let mut row = 0;
        while row < queries {
            row_panel(s, &f, q0, row, queries, k0, keys, mask);
            row += MR;
        }
        k0 += KEYS;
    }
    for i in 0..queries {
        let (top, sum) = (*f.tops.add(i), *f.sums.add(i));
        let seen = sum != 0.0;
        lse.add(i).write_unaligned(if seen { top + libm::log(sum as f64) as f32 } else { f32::NEG_INFINITY });
        let inverse = F32x4::splat(if seen { 1.0 / sum } else { 0.0 });
        let to = o.add(i * s.dense(s.heads));
        let mut j = 0;
        while j < dim {
            store_part(to.add(j), F32x4::load(f.output.add(i * padded + j)) * inverse, dim - j);
            j += 4;
        }
    }
}

/// Four query rows against one block of keys: scores, online softmax, weighted values.
#[inline(always)]
unsafe fn row_panel(
    s: &Shape,
    f: &Forward,
    q0: usize,
    row: usize,
    queries: usize,
    k0: usize,
    keys: usize,
    mask: *const u8,
) {
    let (dim, padded) = (s.head_dim, s.padded());
    let last = (row + MR).min(queries) - 1;
    let seen = s.visible(q0 + last, k0, keys);
    if seen == 0 {
        return;
    }
    let width = seen.next_multiple_of(NR);
    let mut c = 0;
    while c < width {
        tile(dim, f.queries.add(row * dim), f.keys.add(c * dim), f.scores.add(c), KEYS, s.scale, 0.0);
        c += NR;
    }
    for i in 0..MR {
        let scores = f.scores.add(i * KEYS);
        hide(scores, s.visible(q0 + row + i, k0, seen), width, mask);
        let mut top = F32x4::splat(*f.tops.add(row + i));
        let mut j = 0;
        while j < width {
            top = top.max_of_numbers(F32x4::load(scores.add(j)));
            j += 4;
        }
        let (old, top) = (*f.tops.add(row + i), top.largest());
        // While a row has seen no key, its weights are e^(-inf - 0) = 0; -inf - -inf would be NaN.
        let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let base4 = F32x4::splat(base);
        let mut sum = F32x4::zero();
        j = 0;
        while j < width {
            let e = exp(F32x4::load(scores.add(j)) - base4);
            e.store(scores.add(j));
            sum = sum + e;
            j += 4;
        }
        let shrink = if old == top { 1.0 } else { exp(F32x4::splat(old - base)).lanes()[0] };
        *f.tops.add(row + i) = top;
        *f.sums.add(row + i) = *f.sums.add(row + i) * shrink + sum.sum();
        if shrink != 1.0 {
            let (out, shrink) = (f.output.add((row + i) * padded), F32x4::splat(shrink));
            j = 0;
            while j < padded {
                (F32x4::load(out.add(j)) * shrink).store(out.add(j));
                j += 4;
            }
        }
    }
    pack::<f32, MR>(f.weights, f.scores, KEYS, 1, MR, seen);
    c = 0;
    while c < padded {
        // A panel of values is as deep as the block, of which only the keys seen are used.
        tile(seen, f.weights, f.values.add(c * keys), f.output.add(row * padded + c), padded, 1.0, 1.0);
        c += NR;
    }
}

/// Sum over the head dim of `a * b`, for one row.
///
/// # Safety
/// Both hold `dim`.
#[inline(always)]
pub unsafe fn row_dot<T: Element>(a: *const T, b: *const T, dim: usize) -> f32 {
    crate::elementwise::dot_f64(dim, |i, count| (load_part(a.add(i), count), load_part(b.add(i), count))) as f32
}
