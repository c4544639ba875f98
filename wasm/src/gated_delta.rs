//! The gated delta rule (Yang et al. 2024): a state [key_dim, value_dim] a head, which each token lets fade and then corrects,
//! `S = e^g S; S += k (beta (v - S^T k))^T`, and reads, `o = S^T (scale * q)`.
//!
//! It is computed a chunk of tokens at a time, so that all but one triangular solve are matrix products. In a chunk with decays
//! `c_i = g_0 + .. + g_i`, the corrections are `w_i = beta_i (v_i - e^c_i S^T k_i - sum of gram_ij w_j over j < i)` with
//! `gram_ij = (k_i . k_j) e^(c_i - c_j)`. Everything within a chunk is f32, and each head's chunks run in order.
//! Where documents begin within a chunk, its parts are computed one after the other, as chunks before which the state is zeros.
use crate::dtype::{load_part, store_part, Element};
use crate::elementwise::{map, zip};
use crate::math::exp_of_negative;
use crate::matmul::{gemm, Matrix, Product, PANEL_WORDS};
use crate::scratch_areas;
use crate::simd::{sum_lanes, F32s, LANES};
use crate::with_float;
use crate::workspace::Workspace;

pub mod backward;

/// Most tokens of a chunk.
pub const MAX_CHUNK: usize = 64;
/// Largest key or value dim of a head.
pub const MAX_DIM: usize = 256;

/// Sizes of one call; see `gatedDelta` in `src/device/kernels/products.ts`.
#[derive(Clone, Copy)]
pub struct Shape {
    pub batch: usize,
    pub seq: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub chunk: usize,
    pub chunks: usize,
    pub scale: f32,
    /// For each token [batch, seq] the place in its sequence of its document's first one; null where a sequence is one document.
    pub starts: *const i32,
    pub space: Workspace,
}

/// The tokens of one chunk, or of one document in it, and one value head.
#[derive(Clone, Copy)]
struct Chunk {
    /// Number of the first token, over all sequences.
    token: usize,
    len: usize,
    /// Whether a document begins with it, so that nothing is known before.
    is_first: bool,
    head: usize,
    key_head: usize,
}

impl Shape {
    /// Value heads that share a key head.
    fn group(&self) -> usize {
        self.value_heads.checked_div(self.key_heads).unwrap_or(0)
    }
    fn chunk_of(&self, batch: usize, key_head: usize, head: usize, n: usize) -> Chunk {
        let first = (n * self.chunk).min(self.seq);
        Chunk {
            token: batch * self.seq + first,
            len: self.chunk.min(self.seq - first),
            is_first: false,
            head,
            key_head,
        }
    }
    /// Whether a document begins with a token, by its number over all sequences.
    unsafe fn begins(&self, token: usize) -> bool {
        let place = token.checked_rem(self.seq).unwrap_or(0);
        !self.starts.is_null() && self.starts.add(token).read_unaligned() == place as i32
    }
    /// The part of a chunk from token `from` of it on, as far as its document goes.
    unsafe fn from(&self, c: Chunk, from: usize) -> Chunk {
        let rest = 1..c.len - from;
        let len = rest.clone().find(|i| self.begins(c.token + from + i)).unwrap_or(rest.end);
        Chunk { token: c.token + from, len, is_first: self.begins(c.token + from), ..c }
    }
    /// The part of a chunk that ends with token `end` of it, exclusive, from where the last document in it begins.
    unsafe fn up_to(&self, c: Chunk, end: usize) -> Chunk {
        let first = (0..end).rev().find(|&i| self.begins(c.token + i));
        let from = first.unwrap_or(0);
        Chunk { token: c.token + from, len: end - from, is_first: first.is_some(), ..c }
    }
    /// Elements along which something is multiplied by the state before a chunk: none where that is zeros.
    fn depth(&self, c: Chunk, elements: usize) -> usize {
        if c.is_first {
            0
        } else {
            elements
        }
    }
    /// Elements of a state.
    fn state(&self) -> usize {
        self.key_dim * self.value_dim
    }
    /// Where a chunk's queries or keys begin.
    fn keys_at(&self, c: Chunk) -> usize {
        (c.token * self.key_heads + c.key_head) * self.key_dim
    }
    /// Where its values begin.
    fn values_at(&self, c: Chunk) -> usize {
        (c.token * self.value_heads + c.head) * self.value_dim
    }
    /// `c = alpha * a @ b + beta * c` with `m` rows, `n` columns and `k` products an element; `c` is dense.
    #[inline(never)]
    unsafe fn multiply(&self, [m, n, k]: [usize; 3], factors: [f32; 2], a: Matrix<f32>, b: Matrix<f32>, c: *mut f32) {
        gemm(self.space, Product { m, n, k, alpha: factors[0], beta: factors[1] }, a, b, c, n);
    }
}

/// What [`Shape::multiply`] does with its destination.
const OVERWRITE: [f32; 2] = [1.0, 0.0];
const ADD: [f32; 2] = [1.0, 1.0];

// Matrices of a chunk have a token a row.
scratch_areas! { Space {
    _products: PANEL_WORDS,              // what `gemm` packs into
    q: MAX_CHUNK * MAX_DIM,              // times the scale
    k: MAX_CHUNK * MAX_DIM,
    dq: MAX_CHUNK * MAX_DIM,
    dk: MAX_CHUNK * MAX_DIM,             // of keys as rows of `gram`, and as what the state is read with
    dk_column: MAX_CHUNK * MAX_DIM,      // of keys as its columns, and as what the state is written with
    all_dq: MAX_CHUNK * MAX_DIM,         // of all heads that share the keys
    all_dk: MAX_CHUNK * MAX_DIM,
    y: MAX_CHUNK * MAX_DIM,              // corrections before the factor `beta`
    w: MAX_CHUNK * MAX_DIM,              // and after it
    dw: MAX_CHUNK * MAX_DIM,
    o: MAX_CHUNK * MAX_DIM,              // or its gradient
    gram: MAX_CHUNK * MAX_CHUNK,         // below the diagonal
    scores: MAX_CHUNK * MAX_CHUNK,       // `(q_i . k_j) e^(c_i - c_j)`, up to the diagonal
    decays: MAX_CHUNK * MAX_CHUNK,       // `e^(c_i - c_j)`, up to the diagonal
    dgram: MAX_CHUNK * MAX_CHUNK,
    dscores: MAX_CHUNK * MAX_CHUNK,
    sums: MAX_CHUNK,                     // c
    falls: MAX_CHUNK,                    // `e^c_i`
    rests: MAX_CHUNK,                    // `e^(c_last - c_i)`
    betas: MAX_CHUNK,
} }

/// A dense matrix, or its transpose.
fn rows(data: *const f32, width: usize) -> Matrix<f32> {
    Matrix::new(data, width, false)
}
fn columns(data: *const f32, width: usize) -> Matrix<f32> {
    Matrix::new(data, width, true)
}

/// `dst = scale * src` for `len` rows, from rows `from` apart to rows `to` apart.
#[inline(never)]
unsafe fn copy_rows<S: Element, D: Element>(
    (dst, to): (*mut D, usize),
    (src, from): (*const S, usize),
    len: usize,
    width: usize,
    scale: f32,
) {
    for i in 0..len {
        map(dst.add(i * to), src.add(i * from), width, |x| x * F32s::splat(scale));
    }
}

/// Multiplies each row by its factor.
#[inline(never)]
unsafe fn scale_rows(x: *mut f32, factors: *const f32, len: usize, width: usize) {
    for i in 0..len {
        let factor = F32s::load_splat(factors.add(i));
        map(x.add(i * width), x.add(i * width), width, |x| x * factor);
    }
}

/// `dst += src`.
#[inline(never)]
unsafe fn add(dst: *mut f32, src: *const f32, n: usize) {
    zip(dst, dst as *const f32, src, n, |a, b| a + b);
}

#[inline(never)]
unsafe fn dot(a: *const f32, b: *const f32, n: usize) -> f32 {
    sum_lanes(n, |sum, i, count| load_part(a.add(i), count).madd(load_part(b.add(i), count), sum))
}

/// Solves for corrections, row by row: row i of `x` becomes itself minus the sum of `gram[i, j] * solved[j]` over the rows before
/// it, and row i of `solved` becomes that times its beta. With `transposed` it goes back over the rows: of `gram[j, i]` and those
/// after it; row i of `solved` is what was multiplied by beta i in the forward, and `betas` becomes the gradients of the betas.
#[inline(never)]
unsafe fn substitute(f: &Space, x: *mut f32, solved: *mut f32, len: usize, width: usize, transposed: bool) {
    let (row_step, step) = if transposed { (1, len) } else { (len, 1) };
    for n in 0..len {
        let i = if transposed { len - 1 - n } else { n };
        let others = if transposed { i + 1..len } else { 0..i };
        let (row, made) = (x.add(i * width), solved.add(i * width));
        for at in (0..width).step_by(LANES) {
            let count = (width - at).min(LANES);
            let mut sum = load_part(row.add(at) as *const f32, count);
            for j in others.clone() {
                let factor = F32s::splat(-*f.gram.add(i * row_step + j * step));
                sum = factor.madd(load_part(solved.add(j * width + at) as *const f32, count), sum);
            }
            store_part(row.add(at), sum, count);
        }
        let beta = F32s::load_splat(f.betas.add(i));
        if transposed {
            *f.betas.add(i) = dot(row, made, width);
        }
        map(made, row as *const f32, width, |x| beta * x);
    }
}

/// `dst = e^(base + sign * sum)`, at most 1.
#[inline(never)]
unsafe fn fall(dst: *mut f32, base: f32, sign: f32, sums: *const f32, len: usize) {
    let (base, sign) = (F32s::splat(base), F32s::splat(sign));
    map(dst, sums, len, |sum| exp_of_negative((base + sign * sum).at_most(0.0)));
}

/// An array of any float dtype.
#[derive(Clone, Copy)]
pub struct Floats {
    dtype: u32,
    data: *mut u8,
}

/// The array of a dtype code at an address.
pub fn floats(dtype: u32, data: *mut u8) -> Floats {
    Floats { dtype, data }
}

impl Floats {
    /// `dst = scale * self` for `len` rows, which lie `stride` apart from element `at` on.
    #[inline(never)]
    unsafe fn read(self, dst: *mut f32, at: usize, stride: usize, len: usize, width: usize, scale: f32) {
        with_float!(self.dtype, T => copy_rows((dst, width), ((self.data as *const T).add(at), stride), len, width, scale))
    }
    /// `self = scale * src`, likewise.
    #[inline(never)]
    unsafe fn write(self, src: *const f32, at: usize, stride: usize, len: usize, width: usize, scale: f32) {
        with_float!(self.dtype, T => copy_rows(((self.data as *mut T).add(at), stride), (src, width), len, width, scale))
    }
}

/// What both directions read.
#[derive(Clone, Copy)]
pub struct Inputs {
    pub q: Floats,
    pub k: Floats,
    pub v: Floats,
    pub g: Floats,
    pub beta: Floats,
}

/// Reads a chunk, and computes its corrections.
#[inline(never)]
unsafe fn read(s: &Shape, f: &Space, c: Chunk, x: &Inputs, state: *const f32) {
    let (stride, row) = (s.key_heads * s.key_dim, c.token * s.value_heads + c.head);
    x.q.read(f.q, s.keys_at(c), stride, c.len, s.key_dim, s.scale);
    x.k.read(f.k, s.keys_at(c), stride, c.len, s.key_dim, 1.0);
    x.v.read(f.y, s.values_at(c), s.value_heads * s.value_dim, c.len, s.value_dim, 1.0);
    x.beta.read(f.betas, row, s.value_heads, c.len, 1, 1.0);
    x.g.read(f.sums, row, s.value_heads, c.len, 1, 1.0);
    let mut sum = 0.0;
    for i in 0..c.len {
        sum += *f.sums.add(i) as f64;
        *f.sums.add(i) = sum as f32;
    }
    relate(s, f, c.len);
    correct(s, f, c, state);
}

/// The decays within a chunk, and what its queries and keys have to do with the keys before them.
#[inline(never)]
unsafe fn relate(s: &Shape, f: &Space, len: usize) {
    let (q, k) = (rows(f.q, s.key_dim), rows(f.k, s.key_dim));
    s.multiply([len, len, s.key_dim], OVERWRITE, q, columns(f.k, s.key_dim), f.scores);
    s.multiply([len, len, s.key_dim], OVERWRITE, k, columns(f.k, s.key_dim), f.gram);
    fall(f.falls, 0.0, 1.0, f.sums, len);
    fall(f.rests, if len == 0 { 0.0 } else { *f.sums.add(len - 1) }, -1.0, f.sums, len);
    for i in 0..len {
        let decays = f.decays.add(i * len);
        fall(decays, *f.sums.add(i), -1.0, f.sums, len);
        core::ptr::write_bytes(decays.add(i + 1), 0, len - i - 1);
    }
    fade(f.scores, f, len, 1);
    fade(f.gram, f, len, 0);
}

/// Multiplies a matrix [len, len] by the decays; those at and above `diagonal` columns behind a row's own become zeros.
#[inline(never)]
unsafe fn fade(x: *mut f32, f: &Space, len: usize, diagonal: usize) {
    zip(x, x as *const f32, f.decays as *const f32, len * len, |x, decay| x * decay);
    for i in 0..len {
        // Not left to the decays: a product with 0 may be NaN.
        core::ptr::write_bytes(x.add(i * len + i + diagonal), 0, len - i - diagonal);
    }
}

/// The corrections of a chunk, of the values in `y` and the state before it.
#[inline(never)]
unsafe fn correct(s: &Shape, f: &Space, c: Chunk, state: *const f32) {
    let (len, width) = (c.len, s.value_dim);
    s.multiply([len, width, s.depth(c, s.key_dim)], OVERWRITE, rows(f.k, s.key_dim), rows(state, width), f.w);
    scale_rows(f.w, f.falls, len, width);
    zip(f.y, f.y as *const f32, f.w as *const f32, len * width, |value, known| value - known);
    substitute(f, f.y, f.w, len, width, false);
}

/// The output of a chunk, and the state after it.
#[inline(never)]
unsafe fn advance(s: &Shape, f: &Space, c: Chunk, state: *mut f32) {
    let (len, width) = (c.len, s.value_dim);
    s.multiply([len, width, s.depth(c, s.key_dim)], OVERWRITE, rows(f.q, s.key_dim), rows(state, width), f.o);
    scale_rows(f.o, f.falls, len, width);
    s.multiply([len, width, len], ADD, rows(f.scores, len), rows(f.w, width), f.o);
    if len > 0 {
        let fall = if c.is_first { 0.0 } else { *f.falls.add(len - 1) };
        scale_rows(f.k, f.rests, len, s.key_dim);
        s.multiply([s.key_dim, width, len], [1.0, fall], columns(f.k, s.key_dim), rows(f.w, width), state);
    }
}

/// `o`, and each head's `state` moved on by all tokens; the states before each chunk go to `states`, unless that is null.
pub unsafe fn forward(s: &Shape, o: Floats, state: *mut f32, states: *mut f32, x: &Inputs) {
    s.space.split(s.batch * s.value_heads, s.seq * s.key_dim * s.value_dim, |places, space| {
        for place in places {
            forward_head(&Shape { space, ..*s }, place, o, state, states, x);
        }
    });
}

/// The tokens of one value head of one sequence.
#[inline(never)]
unsafe fn forward_head(s: &Shape, place: usize, o: Floats, state: *mut f32, states: *mut f32, x: &Inputs) {
    let f = Space::new(s.space);
    let (batch, head) = (place / s.value_heads, place % s.value_heads);
    let state = state.add(place * s.state());
    for n in 0..s.chunks {
        if !states.is_null() {
            core::ptr::copy_nonoverlapping(state, states.add((place * s.chunks + n) * s.state()), s.state());
        }
        let all = s.chunk_of(batch, head / s.group(), head, n);
        let mut done = 0;
        while done < all.len {
            let c = s.from(all, done);
            read(s, &f, c, x, state);
            advance(s, &f, c, state);
            o.write(f.o, s.values_at(c), s.value_heads * s.value_dim, c.len, s.value_dim, 1.0);
            done += c.len;
        }
    }
}
