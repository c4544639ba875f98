//! Gradients of the gated delta rule, chunk by chunk from the last one on. A chunk's corrections are computed again, of the state
//! before it, which the forward kept.
use super::{
    add, columns, dot, fade, read, rows, scale_rows, substitute, Chunk, Floats, Inputs, Shape, Space, ADD, OVERWRITE,
};

/// Where gradients go.
#[derive(Clone, Copy)]
pub struct Gradients {
    pub dq: Floats,
    pub dk: Floats,
    pub dv: Floats,
    pub dg: Floats,
    pub dbeta: Floats,
}

/// Gradients of [`forward`](super::forward), with the states that it kept. `d_state` holds the gradient of the last states, and then the gradient of the
/// first ones.
pub unsafe fn backward(s: &Shape, d_state: *mut f32, to: &Gradients, d_o: Floats, states: *const f32, x: &Inputs) {
    s.space.split(s.batch * s.key_heads, s.seq * s.key_dim * s.value_dim, |places, space| {
        for place in places {
            backward_heads(&Shape { space, ..*s }, place, d_state, to, d_o, states, x);
        }
    });
}

/// The tokens of the value heads of one sequence that share a key head, from the last chunk on.
#[inline(never)]
unsafe fn backward_heads(
    s: &Shape,
    place: usize,
    d_state: *mut f32,
    to: &Gradients,
    d_o: Floats,
    states: *const f32,
    x: &Inputs,
) {
    let f = Space::new(s.space);
    let (batch, key_head) = (place / s.key_heads, place % s.key_heads);
    for n in (0..s.chunks).rev() {
        let all = s.chunk_of(batch, key_head, 0, n);
        let mut end = all.len;
        while end > 0 {
            let c = s.up_to(all, end);
            part_backward(s, &f, c, [batch, n], d_state, to, d_o, states, x);
            end -= c.len;
        }
    }
}

/// The part of a chunk, `n` of the sequence `batch`, that is in one document; of all value heads that share its key head.
#[inline(never)]
unsafe fn part_backward(
    s: &Shape,
    f: &Space,
    first: Chunk,
    [batch, n]: [usize; 2],
    d_state: *mut f32,
    to: &Gradients,
    d_o: Floats,
    states: *const f32,
    x: &Inputs,
) {
    let (len, width, stride) = (first.len, s.value_dim, s.value_heads * s.value_dim);
    core::ptr::write_bytes(f.all_dq, 0, len * s.key_dim);
    core::ptr::write_bytes(f.all_dk, 0, len * s.key_dim);
    for head in first.key_head * s.group()..(first.key_head + 1) * s.group() {
        let c = Chunk { head, ..first };
        let place = batch * s.value_heads + head;
        let state = states.add((place * s.chunks + n) * s.state());
        read(s, f, c, x, state);
        d_o.read(f.o, s.values_at(c), stride, len, width, 1.0);
        retreat(s, f, c, state, d_state.add(place * s.state()));
        let row = c.token * s.value_heads + head;
        to.dg.write(f.sums, row, s.value_heads, len, 1, 1.0);
        to.dbeta.write(f.betas, row, s.value_heads, len, 1, 1.0);
        to.dv.write(f.y, s.values_at(c), stride, len, width, 1.0);
        add(f.all_dq, f.dq, len * s.key_dim);
        add(f.all_dk, f.dk, len * s.key_dim);
    }
    let (at, stride) = (s.keys_at(first), s.key_heads * s.key_dim);
    to.dq.write(f.all_dq, at, stride, len, s.key_dim, s.scale);
    to.dk.write(f.all_dk, at, stride, len, s.key_dim, 1.0);
}

/// Gradients of one chunk, from two gradients: of its output, in `o`, and of the state after it, in `d_state`. `d_state` becomes the gradient of the state
/// before it: zeros where a document begins with the chunk. They are left in `dq`, `dk` and, in place of what they are of, in `y` (the values), `betas` and, of `g`, in `sums`.
#[inline(never)]
unsafe fn retreat(s: &Shape, f: &Space, c: Chunk, state: *const f32, d_state: *mut f32) {
    let (len, keys, width) = (c.len, s.key_dim, s.value_dim);
    if len == 0 {
        return;
    }
    corrections_backward(s, f, len, d_state);
    let fall = *f.falls.add(len - 1);
    let mut later = if c.is_first { 0.0 } else { fall as f64 * dot(state, d_state, s.state()) as f64 };
    later += keys_backward(s, f, c, state, d_state) as f64;
    for i in (0..len).rev() {
        // A decay's gradient follows from the gradients of all that it multiplies; c_i holds the decays of all tokens up to i.
        let (k, at) = (f.k.add(i * keys), i * keys);
        later += dot(f.q.add(at), f.dq.add(at), keys) as f64;
        later += dot(k, f.dk.add(at), keys) as f64 - dot(k, f.dk_column.add(at), keys) as f64;
        *f.sums.add(i) = later as f32;
    }
    add(f.dk, f.dk_column, len * keys);
    if c.is_first {
        return core::ptr::write_bytes(d_state, 0, s.state());
    }
    scale_rows(f.q, f.falls, len, keys);
    scale_rows(f.k, f.falls, len, keys);
    s.multiply([keys, width, len], [1.0, fall], columns(f.q, keys), rows(f.o, width), d_state);
    s.multiply([keys, width, len], [-1.0, 1.0], columns(f.k, keys), rows(f.y, width), d_state);
}

/// Gradients of the corrections and of what they are made of: `dw`; `y` becomes its own gradient, which is the gradient of the values.
#[inline(never)]
unsafe fn corrections_backward(s: &Shape, f: &Space, len: usize, d_state: *const f32) {
    let (keys, width) = (s.key_dim, s.value_dim);
    s.multiply([len, width, keys], OVERWRITE, rows(f.k, keys), rows(d_state, width), f.dw);
    scale_rows(f.dw, f.rests, len, width);
    s.multiply([len, width, len], ADD, columns(f.scores, len), rows(f.o, width), f.dw);
    substitute(f, f.dw, f.y, len, width, true);
    s.multiply([len, len, width], OVERWRITE, rows(f.o, width), columns(f.w, width), f.dscores);
    s.multiply([len, len, width], [-1.0, 0.0], rows(f.y, width), columns(f.w, width), f.dgram);
    fade(f.dscores, f, len, 1);
    fade(f.dgram, f, len, 0);
}

/// Gradients of queries and keys. Returns the gradient of `c_last` through the keys that are written to the state.
#[inline(never)]
unsafe fn keys_backward(s: &Shape, f: &Space, c: Chunk, state: *const f32, d_state: *const f32) -> f32 {
    let (len, keys, width) = (c.len, s.key_dim, s.value_dim);
    let (own, within, before) = ([len, keys, width], [len, keys, len], [len, keys, s.depth(c, width)]);
    s.multiply(before, OVERWRITE, rows(f.o, width), columns(state, width), f.dq);
    scale_rows(f.dq, f.falls, len, keys);
    s.multiply(within, ADD, rows(f.dscores, len), rows(f.k, keys), f.dq);
    s.multiply(before, [-1.0, 0.0], rows(f.y, width), columns(state, width), f.dk);
    scale_rows(f.dk, f.falls, len, keys);
    s.multiply(within, ADD, rows(f.dgram, len), rows(f.k, keys), f.dk);
    s.multiply(own, OVERWRITE, rows(f.w, width), columns(d_state, width), f.dk_column);
    scale_rows(f.dk_column, f.rests, len, keys);
    let last = dot(f.k, f.dk_column, len * keys);
    s.multiply(within, ADD, columns(f.dscores, len), rows(f.q, keys), f.dk_column);
    s.multiply(within, ADD, columns(f.dgram, len), rows(f.k, keys), f.dk_column);
    last
}
