//! Attention in the flash manner: blocks of queries against blocks of keys with an online softmax, so that working
//! space does not grow with the sequence.
//!
//! Scores are products of packed panels (`pack.rs`, `tile.rs`). In a causal call a row panel meets no key that all its rows
//! cannot see, and with a window or documents no block of keys that lies before it. Each query head is computed alone, keys in ascending order: nothing depends on the batch or the heads.
use crate::ahead::Nothing;
use crate::dropout::{multiply, Dropout};
use crate::dtype::{load_part, store_part, Element};
use crate::factors::{words, Widened};
use crate::math::{exp_of_negative as exp, exps_of_negatives, tanh};
use crate::pack::{pack, pack_left, spread};
use crate::scratch_areas;
use crate::simd::{max, sum_lanes, F32s, LANES, SUM_LANES};
use crate::tile::{tile, tile_in_place, Left, MR, NR, SPREAD};
use crate::workspace::Workspace;

/// Largest head dim.
pub const MAX_HEAD_DIM: usize = 256;
const QUERIES: usize = 128;
const KEYS: usize = 256;
const ROWS: usize = QUERIES.next_multiple_of(MR);

/// Sizes, strides and switches of one call; see `attention` in `src/device/kernels/products.ts`.
#[derive(Clone, Copy)]
pub struct Shape {
    pub batch: usize,
    pub seq_q: usize,
    pub seq_k: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Elements of a head of the values, and of the output.
    pub value_dim: usize,
    pub stride_q: usize,
    pub stride_k: usize,
    pub stride_v: usize,
    pub scale: f32,
    /// Scores `s` become `softcap * tanh(s / softcap)`; 0 leaves them as they are.
    pub softcap: f32,
    pub causal: bool,
    /// Keys up to its own that a query sees; 0 is all.
    pub window: usize,
    /// Queries of a sequence that have masks of their own; of 1, all share it.
    pub mask_rows: usize,
    pub key_mask: *const u8,
    /// For each query [batch, seq_q] the first key that it may see, which never falls along a sequence; or null.
    pub starts: *const i32,
    /// Of probabilities, behind the softmax.
    pub dropout: Dropout,
    pub space: Workspace,
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
    /// How many of the keys from `key` on, at most `count`, lie before the window or the document of query `query`, or of
    /// the last query where that lies beyond it.
    #[inline(always)]
    pub unsafe fn passed(&self, batch: usize, query: usize, key: usize, count: usize) -> usize {
        let mut begin = 0;
        if self.window != 0 {
            begin = (query + 1 + self.seq_k) as isize - (self.seq_q + self.window) as isize;
        }
        if !self.starts.is_null() {
            let query = query.min(self.seq_q.saturating_sub(1));
            begin = begin.max(self.starts.add(batch * self.seq_q + query).read_unaligned() as isize);
        }
        ((begin - key as isize).max(0) as usize).min(count)
    }
    /// Where the first of the blocks of `step` keys begins that the queries of a block may see.
    #[inline(always)]
    pub unsafe fn first_block(&self, b: Block, step: usize) -> usize {
        self.passed(b.batch, b.q0, 0, self.seq_k) / step * step
    }
    /// Whether a row of a block from `row` on, with `seen` keys of it visible, sees any of them.
    #[inline(always)]
    pub unsafe fn sees(&self, b: Block, row: usize, seen: usize) -> bool {
        seen > self.passed(b.batch, b.q0 + row, b.k0, b.keys)
    }
    /// [`Shape::visible`] of a block's keys for its row `row`, or for the last row that it has before that.
    #[inline(always)]
    pub fn seen(&self, b: Block, row: usize) -> usize {
        self.visible(b.q0 + row.min(b.queries - 1), b.k0, b.keys)
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
    /// Where a block's queries begin in an array [batch, seq_q, heads * dim] with this row stride.
    #[inline(always)]
    pub fn queries_at(&self, b: Block, stride: usize, dim: usize) -> usize {
        (b.batch * self.seq_q + b.q0) * stride + b.head * dim
    }
    /// Where a block's keys begin in an array [batch, seq_k, kv_heads * dim] with this row stride.
    #[inline(always)]
    pub fn keys_at(&self, b: Block, stride: usize, dim: usize) -> usize {
        (b.batch * self.seq_k + b.k0) * stride + b.kv * dim
    }
    /// Where a block's rows begin in an array [batch, heads, seq_q].
    #[inline(always)]
    pub fn rows_at(&self, b: Block) -> usize {
        (b.batch * self.heads + b.head) * self.seq_q + b.q0
    }
    /// Factors of `width` keys of a block for a query, where some are dropped.
    #[inline(always)]
    pub unsafe fn dropped(&self, b: Block, query: usize, width: usize, factors: *mut f32) -> bool {
        let drops = self.dropout.p > 0.0;
        if drops {
            self.dropout.factors(b.batch, b.head, query, b.k0, width, factors);
        }
        drops
    }
    /// The mask of a block's keys for a query, or for the last one where that lies beyond it; or null.
    #[inline(always)]
    pub unsafe fn mask_of(&self, b: Block, query: usize) -> *const u8 {
        if self.key_mask.is_null() {
            return self.key_mask;
        }
        let row = b.batch * self.mask_rows + query.min(self.mask_rows.saturating_sub(1));
        self.key_mask.add(row * self.seq_k + b.k0)
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

/// A dim of heads rounded up to whole tiles.
#[inline(always)]
pub fn padded(dim: usize) -> usize {
    dim.next_multiple_of(NR)
}

/// Replaces `width` scores (whole tiles) `s` by `softcap * tanh(s / softcap)`, and gives `slope` the place and the derivative
/// of each.
#[inline(always)]
pub unsafe fn cap(scores: *mut f32, width: usize, softcap: f32, mut slope: impl FnMut(usize, F32s)) {
    let (softcap, one) = (F32s::splat(softcap), F32s::splat(1.0));
    for j in (0..width).step_by(LANES) {
        let share = tanh(F32s::load(scores.add(j)) / softcap);
        (softcap * share).store(scores.add(j));
        slope(j, one - share * share);
    }
}

/// Sets scores of keys that a row must not see to minus infinity: the first `passed`, those beyond `visible`, and those
/// masked out. `row` holds `width` scores, a multiple of `NR`; `mask` is null or holds `visible`.
#[inline(always)]
pub unsafe fn hide(row: *mut f32, passed: usize, visible: usize, width: usize, mask: *const u8) {
    for j in (0..passed).chain(visible..width) {
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
    queries: ROWS * MAX_HEAD_DIM * SPREAD, // panels of rows
    output: ROWS * MAX_HEAD_DIM,     // [ROWS, padded value dim]
    keys: KEYS * MAX_HEAD_DIM,       // panels of keys
    values: KEYS * MAX_HEAD_DIM,     // panels of columns
    scores: MR * KEYS + LANES,       // [MR, KEYS], behind which one vector is read
    weights: MR * KEYS * SPREAD,     // scores as a left operand
    factors: KEYS,
    tops: ROWS,
    sums: ROWS,
} }

/// `o = softmax(scale * q k^T) v` a head, and the logarithm of each row's sum (minus infinity where no key is seen).
pub unsafe fn forward<T: Element>(s: &Shape, o: *mut T, lse: *mut f32, q: *const T, k: *const T, v: *const T) {
    let blocks = s.seq_q.div_ceil(QUERIES);
    s.space.split(s.batch * s.heads * blocks, QUERIES.min(s.seq_q) * s.seq_k * s.head_dim / 8, |part, space| {
        let s = &Shape { space, ..*s };
        for place in part {
            let (row, q0) = (place / blocks, place % blocks * QUERIES);
            let (batch, head) = (row / s.heads, row % s.heads);
            let b = Block { batch, head, kv: s.kv_of(head), q0, queries: QUERIES.min(s.seq_q - q0), k0: 0, keys: 0 };
            block(s, b, o.add(s.queries_at(b, s.heads * s.value_dim, s.value_dim)), lse.add(s.rows_at(b)), q, k, v);
        }
    });
}

/// A block of queries against all keys; `o` and `lse` are its own.
#[inline(never)]
unsafe fn block<T: Element>(s: &Shape, mut b: Block, o: *mut T, lse: *mut f32, q: *const T, k: *const T, v: *const T) {
    let f = Forward::new(s.space);
    let (dim, values, queries) = (s.head_dim, s.value_dim, b.queries);
    pack_left::<T>(f.queries, q.add(s.queries_at(b, s.stride_q, dim)), s.stride_q, 1, queries, dim);
    core::ptr::write_bytes(f.output, 0, queries.next_multiple_of(MR) * padded(values));
    for i in 0..queries.next_multiple_of(MR) {
        *f.tops.add(i) = f32::NEG_INFINITY;
        *f.sums.add(i) = 0.0;
    }
    let end = s.visible(b.q0 + queries - 1, 0, s.seq_k);
    for k0 in (s.first_block(b, KEYS)..end).step_by(KEYS) {
        (b.k0, b.keys) = (k0, KEYS.min(end - k0));
        pack::<T, T::Factors, NR>(f.keys, k.add(s.keys_at(b, s.stride_k, dim)), s.stride_k, 1, b.keys, dim);
        pack::<T, Widened, NR>(f.values, v.add(s.keys_at(b, s.stride_v, values)), 1, s.stride_v, values, b.keys);
        for row in (0..queries).step_by(MR) {
            row_panel::<T>(s, &f, b, row);
        }
    }
    for i in 0..queries {
        let (top, sum) = (*f.tops.add(i), *f.sums.add(i));
        let seen = sum != 0.0;
        lse.add(i).write_unaligned(if seen { top + libm::log(sum as f64) as f32 } else { f32::NEG_INFINITY });
        let inverse = F32s::splat(if seen { 1.0 / sum } else { 0.0 });
        let to = o.add(i * s.heads * values);
        for j in (0..values).step_by(LANES) {
            // A zero is positive: its sign would tell how many keys that are not seen a panel has.
            let value = F32s::load(f.output.add(i * padded(values) + j)) * inverse + F32s::zero();
            store_part(to.add(j), value, values - j);
        }
    }
}

/// The query rows of one panel against one block of keys: scores, online softmax, weighted values.
#[inline(always)]
unsafe fn row_panel<T: Element>(s: &Shape, f: &Forward, b: Block, row: usize) {
    let (depth, padded) = (words::<T, T::Factors>(s.head_dim), padded(s.value_dim));
    let seen = s.seen(b, row + MR - 1);
    if !s.sees(b, row, seen) {
        return;
    }
    let width = seen.next_multiple_of(NR);
    for c in (0..width).step_by(NR) {
        let (queries, keys) = (f.queries.add(row * depth * spread()), f.keys.add(c * depth));
        tile::<T::Factors>(depth, queries, keys, f.scores.add(c), KEYS, s.scale, 0.0, &mut Nothing);
    }
    let (mut bases, mut falls) = ([0.0; MR], [0.0; PANEL]);
    for i in 0..MR {
        let scores = f.scores.add(i * KEYS);
        let query = b.q0 + row + i;
        if s.softcap != 0.0 {
            cap(scores, width, s.softcap, |_, _| ());
        }
        hide(scores, s.passed(b.batch, query, b.k0, seen), s.visible(query, b.k0, seen), width, s.mask_of(b, query));
        let (old, top) = (f.tops.add(row + i), largest(*f.tops.add(row + i), scores, width));
        // While a row has seen no key, its weights are e^(-inf - 0) = 0; -inf - -inf would be NaN.
        bases[i] = if top == f32::NEG_INFINITY { 0.0 } else { top };
        falls[i] = if *old == top { 0.0 } else { *old - bases[i] };
        *old = top;
    }
    // What earlier sums shrink by, of all rows at once.
    let shrinks = exp_of_rows(falls);
    for i in 0..MR {
        let (scores, base, shrink) = (f.scores.add(i * KEYS), F32s::splat(bases[i]), shrinks[i]);
        let sum = exps_of_scores(scores, width, base);
        *f.sums.add(row + i) = *f.sums.add(row + i) * shrink + sum;
        if s.dropped(b, b.q0 + row + i, width, f.factors) {
            multiply(width, scores, f.factors);
        }
        if shrink != 1.0 {
            let (out, shrink) = (f.output.add((row + i) * padded), F32s::splat(shrink));
            for j in (0..padded).step_by(LANES) {
                (F32s::load(out.add(j)) * shrink).store(out.add(j));
            }
        }
    }
    let weights = Left { data: f.scores, row: KEYS, step: 1 }.prepared(seen, f.weights);
    for c in (0..padded).step_by(NR) {
        // A panel of values is as deep as the block, of which only the keys seen are used.
        tile_in_place(seen, weights, f.values.add(c * b.keys), f.output.add(row * padded + c), padded, true);
    }
}

/// Replaces scores by `e^(score - base)`, and gives their sum.
#[inline(always)]
unsafe fn exps_of_scores(scores: *mut f32, width: usize, base: F32s) -> f32 {
    let mut lanes = F32s::zero();
    exps_of_negatives(
        width,
        |j| F32s::load(scores.add(j)) - base,
        |j, e| {
            e.store(scores.add(j));
            lanes = lanes + e;
        },
    );
    if LANES == SUM_LANES {
        // A vector's lanes are those that sums are kept in.
        return lanes.fold(|a, b| a + b);
    }
    sum_lanes(width, |sum, j, _| sum + F32s::load(scores.add(j)))
}

/// Rows of a panel, filled up to whole vectors: to one, but for NEON, whose panel takes two.
const PANEL: usize = if MR > LANES { MR } else { LANES };

/// [`exp`] of a value of each row.
#[cfg(not(target_arch = "aarch64"))]
#[inline(always)]
fn exp_of_rows(rows: [f32; PANEL]) -> [f32; PANEL] {
    exp(F32s::from_lanes(rows)).lanes()
}
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn exp_of_rows(mut rows: [f32; PANEL]) -> [f32; PANEL] {
    const _: () = assert!(PANEL.is_multiple_of(LANES));
    for lanes in rows.as_chunks_mut().0 {
        *lanes = exp(F32s::from_lanes(*lanes)).lanes();
    }
    rows
}

/// The largest of `width` scores (whole tiles) and `start`, NaN left out.
#[inline(always)]
unsafe fn largest(start: f32, scores: *const f32, width: usize) -> f32 {
    let mut tops = [F32s::splat(start); 2];
    for j in (0..width).step_by(2 * LANES) {
        for (half, top) in tops.iter_mut().enumerate() {
            *top = top.max_of_numbers(F32s::load(scores.add(j + half * LANES)));
        }
    }
    tops[0].max_of_numbers(tops[1]).fold(max)
}

/// Sum over the head dim of `a * b`, for one row. Not inlined, as several kernels would hold it.
#[inline(never)]
pub unsafe fn row_dot<T: Element>(a: *const T, b: *const T, dim: usize) -> f32 {
    crate::elementwise::dot_f64(dim, |i, count| (load_part(a.add(i), count), load_part(b.add(i), count))) as f32
}
