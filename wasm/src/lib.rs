//! CPU kernels of fullyshard. This file is the module's exports and nothing else; each subject has a file.
//!
//! Arguments are addresses in the one imported memory, sizes and strides in elements, dtypes as codes (`dtype.rs`); `0`
//! stands for an address left out. Nothing is checked here: `src/device/wasm/kernels.ts` is the only caller. There is
//! no allocator and no panic text (a panic would trap); working space lies behind the module's data (`workspace.rs`).
#![cfg_attr(target_arch = "wasm32", no_std)]
#![allow(
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::eq_op,
    clippy::needless_range_loop,
    clippy::should_implement_trait
)]

pub mod attention;
pub mod attention_backward;
pub mod collective;
pub mod dtype;
pub mod elementwise;
pub mod embedding;
pub mod exact;
pub mod loss;
pub mod math;
pub mod matmul;
pub mod norm;
pub mod optimizer;
pub mod philox;
pub mod reduce;
pub mod rope;
pub mod simd;
#[cfg(not(target_arch = "wasm32"))]
mod simd_portable;
#[cfg(target_arch = "wasm32")]
mod simd_wasm;
pub mod softmax;
pub mod strided;
pub mod swiglu;
pub mod tile;
pub mod unary;
pub mod workspace;

use dtype::{Bf16, BF16, F32};
use matmul::{Matrix, Product};
use strided::Walk;

#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn trap(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}

// Working space.

#[no_mangle]
pub extern "C" fn heap_base() -> usize {
    workspace::heap_base()
}
#[no_mangle]
pub extern "C" fn parameter_area() -> usize {
    workspace::parameters() as usize
}

// Dense arrays.

#[no_mangle]
pub unsafe extern "C" fn fill(dtype: u32, dst: usize, n: usize, value: f64) {
    elementwise::fill(dtype, dst, n, value)
}
#[no_mangle]
pub unsafe extern "C" fn cast(dst_dtype: u32, src_dtype: u32, dst: usize, src: usize, n: usize) {
    match (dst_dtype, src_dtype) {
        (F32, F32) => core::ptr::copy(src as *const u8, dst as *mut u8, n * 4),
        (BF16, BF16) => core::ptr::copy(src as *const u8, dst as *mut u8, n * 2),
        (F32, BF16) => elementwise::map(dst as *mut f32, src as *const Bf16, n, |v| v),
        (BF16, F32) => elementwise::map(dst as *mut Bf16, src as *const f32, n, |v| v),
        _ => elementwise::cast_i32(dst as *mut f32, src as *const i32, n),
    }
}
#[no_mangle]
pub unsafe extern "C" fn unary(op: u32, dtype: u32, dst: usize, src: usize, n: usize, p0: f32, p1: f32) {
    with_float!(dtype, T => unary::forward(op, dst as *mut T, src as *const T, n, p0, p1))
}
#[no_mangle]
pub unsafe extern "C" fn unary_backward(
    op: u32,
    dtype: u32,
    dx: usize,
    dy: usize,
    x: usize,
    n: usize,
    p0: f32,
    p1: f32,
) {
    with_float!(dtype, T => unary::backward(op, dx as *mut T, dy as *const T, x as *const T, n, p0, p1))
}
#[no_mangle]
pub unsafe extern "C" fn accumulate(dst_dtype: u32, src_dtype: u32, dst: usize, src: usize, n: usize) {
    with_float!(dst_dtype, D => with_float!(src_dtype, T => {
        elementwise::zip(dst as *mut D, dst as *const D, src as *const T, n, |a, b| a + b)
    }))
}
#[no_mangle]
pub unsafe extern "C" fn scale(dtype: u32, dst: usize, src: usize, n: usize, factor: f32) {
    let factor = simd::F32x4::splat(factor);
    with_float!(dtype, T => elementwise::map(dst as *mut T, src as *const T, n, |v| v * factor))
}
#[no_mangle]
pub unsafe extern "C" fn scale_by(dtype: u32, dst: usize, src: usize, n: usize, factor: usize) {
    scale(dtype, dst, src, n, (factor as *const f32).read_unaligned())
}
#[no_mangle]
pub unsafe extern "C" fn max_abs(dtype: u32, src: usize, n: usize) -> f32 {
    with_float!(dtype, T => elementwise::max_abs(src as *const T, n))
}

// Strided arrays; shape and strides in the parameter area.

#[no_mangle]
pub unsafe extern "C" fn copy_strided(byte_length: u32, dst: usize, src: usize, ndim: usize) {
    let walk = Walk::<2>::read(workspace::parameters(), ndim);
    match byte_length {
        1 => strided::copy(&walk, dst as *mut u8, src as *const u8),
        2 => strided::copy(&walk, dst as *mut u16, src as *const u16),
        4 => strided::copy(&walk, dst as *mut u32, src as *const u32),
        _ => strided::copy(&walk, dst as *mut u64, src as *const u64),
    }
}
#[no_mangle]
pub unsafe extern "C" fn binary(op: u32, dtype: u32, dst: usize, a: usize, b: usize, ndim: usize) {
    let walk = Walk::<2>::read(workspace::parameters(), ndim);
    with_float!(dtype, T => strided::binary(op, &walk, dst as *mut T, a as *const T, b as *const T))
}

// Reductions.

#[no_mangle]
pub unsafe extern "C" fn reduce(op: u32, dtype: u32, dst: usize, src: usize, outer: usize, n: usize, inner: usize) {
    with_float!(dtype, T => reduce::reduce(op, dst as *mut T, src as *const T, outer, n, inner))
}
#[no_mangle]
pub unsafe extern "C" fn argmax(dtype: u32, dst: usize, src: usize, rows: usize, cols: usize) {
    with_float!(dtype, T => reduce::argmax(dst as *mut i32, src as *const T, rows, cols))
}
#[no_mangle]
pub extern "C" fn accumulator_bytes() -> usize {
    exact::BYTES
}
#[no_mangle]
pub unsafe extern "C" fn sum_squares(dtype: u32, accumulator: usize, src: usize, rows: usize, cols: usize) {
    with_float!(dtype, T => exact::add_squares(accumulator as *mut i64, src as *const T, rows, cols))
}
#[no_mangle]
pub unsafe extern "C" fn accumulator_value(accumulator: usize) -> f64 {
    exact::value(accumulator as *const i64)
}

// Matrix products.

#[no_mangle]
pub unsafe extern "C" fn gemm(
    dtype: u32,
    out_dtype: u32,
    trans_a: u32,
    trans_b: u32,
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    a: usize,
    lda: usize,
    stride_a: usize,
    b: usize,
    ldb: usize,
    stride_b: usize,
    beta: f32,
    c: usize,
    ldc: usize,
    stride_c: usize,
    batch: usize,
) {
    let product = Product { m, n, k, alpha, beta };
    with_float!(dtype, T => with_float!(out_dtype, C => {
        for i in 0..batch {
            let a = Matrix::new((a as *const T).add(i * stride_a), lda, trans_a != 0);
            let b = Matrix::new((b as *const T).add(i * stride_b), ldb, trans_b != 0);
            matmul::gemm(product, a, b, (c as *mut C).add(i * stride_c), ldc);
        }
    }))
}

// Layers.

#[no_mangle]
pub unsafe extern "C" fn softmax(dtype: u32, y: usize, x: usize, rows: usize, cols: usize) {
    with_float!(dtype, T => softmax::forward(y as *mut T, x as *const T, rows, cols))
}
#[no_mangle]
pub unsafe extern "C" fn softmax_backward(dtype: u32, dx: usize, dy: usize, y: usize, rows: usize, cols: usize) {
    with_float!(dtype, T => softmax::backward(dx as *mut T, dy as *const T, y as *const T, rows, cols))
}
#[no_mangle]
pub unsafe extern "C" fn rms_norm(
    dtype: u32,
    y: usize,
    rstd: usize,
    x: usize,
    w: usize,
    rows: usize,
    cols: usize,
    eps: f64,
) {
    with_float!(dtype, T => {
        norm::rms(y as *mut T, rstd as *mut f32, x as *const T, w as *const T, rows, cols, eps)
    })
}
#[no_mangle]
pub unsafe extern "C" fn rms_norm_backward(
    dtype: u32,
    dx: usize,
    dw: usize,
    dy: usize,
    x: usize,
    w: usize,
    rstd: usize,
    rows: usize,
    cols: usize,
) {
    with_float!(dtype, T => norm::rms_backward(
        dx as *mut T, dw as *mut f32, dy as *const T, x as *const T, w as *const T, rstd as *const f32, rows, cols,
    ))
}
#[no_mangle]
pub unsafe extern "C" fn layer_norm(
    dtype: u32,
    y: usize,
    mean: usize,
    rstd: usize,
    x: usize,
    w: usize,
    b: usize,
    rows: usize,
    cols: usize,
    eps: f64,
) {
    with_float!(dtype, T => norm::layer(
        y as *mut T, mean as *mut f32, rstd as *mut f32, x as *const T, w as *const T, b as *const T, rows, cols, eps,
    ))
}
#[no_mangle]
pub unsafe extern "C" fn layer_norm_backward(
    dtype: u32,
    dx: usize,
    dw: usize,
    db: usize,
    dy: usize,
    x: usize,
    w: usize,
    mean: usize,
    rstd: usize,
    rows: usize,
    cols: usize,
) {
    with_float!(dtype, T => norm::layer_backward(
        dx as *mut T, dw as *mut f32, db as *mut f32, dy as *const T, x as *const T, w as *const T,
        mean as *const f32, rstd as *const f32, rows, cols,
    ))
}
#[no_mangle]
pub unsafe extern "C" fn rope(
    dtype: u32,
    y: usize,
    x: usize,
    stride: usize,
    cos: usize,
    sin: usize,
    positions: usize,
    batch: usize,
    seq: usize,
    heads: usize,
    head_dim: usize,
    rotary_dim: usize,
    inverse: u32,
) {
    let shape = rope::Shape { batch, seq, heads, head_dim, rotary_dim, stride, inverse: inverse != 0 };
    with_float!(dtype, T => rope::rotate(
        y as *mut T, x as *const T, cos as *const f32, sin as *const f32, positions as *const i32, shape,
    ))
}
#[no_mangle]
pub unsafe extern "C" fn rope_table(
    cos: usize,
    sin: usize,
    inv_freq: usize,
    positions: usize,
    half: usize,
    scale: f32,
) {
    rope::table(cos as *mut f32, sin as *mut f32, inv_freq as *const f32, positions, half, scale)
}
#[no_mangle]
pub unsafe extern "C" fn embedding(
    dtype: u32,
    y: usize,
    w: usize,
    ids: usize,
    n: usize,
    vocab: usize,
    cols: usize,
) -> i32 {
    with_float!(dtype, T => embedding::gather(y as *mut T, w as *const T, ids as *const i32, n, vocab, cols))
}
#[no_mangle]
pub unsafe extern "C" fn embedding_backward(
    dtype: u32,
    dw: usize,
    dy: usize,
    ids: usize,
    n: usize,
    vocab: usize,
    cols: usize,
    padding: i32,
) {
    with_float!(dtype, T => {
        embedding::scatter_add(dw as *mut f32, dy as *const T, ids as *const i32, n, vocab, cols, padding)
    })
}
#[no_mangle]
pub unsafe extern "C" fn cross_entropy(
    dtype: u32,
    losses: usize,
    dlogits: usize,
    logits: usize,
    labels: usize,
    rows: usize,
    cols: usize,
    ignore: i32,
    scale: f32,
) -> i32 {
    with_float!(dtype, T => loss::cross_entropy(
        losses as *mut f32, dlogits as *mut T, logits as *const T, labels as *const i32, rows, cols, ignore, scale,
    ))
}
#[no_mangle]
pub unsafe extern "C" fn swiglu(dtype: u32, y: usize, gate: usize, up: usize, n: usize) {
    with_float!(dtype, T => swiglu::forward(y as *mut T, gate as *const T, up as *const T, n))
}
#[no_mangle]
pub unsafe extern "C" fn swiglu_backward(
    dtype: u32,
    dgate: usize,
    dup: usize,
    dy: usize,
    gate: usize,
    up: usize,
    n: usize,
) {
    with_float!(dtype, T => {
        swiglu::backward(dgate as *mut T, dup as *mut T, dy as *const T, gate as *const T, up as *const T, n)
    })
}

// Attention; sizes in the parameter area, in the order of `attention_shape`.

unsafe fn attention_shape(scale: f32, key_mask: usize) -> attention::Shape {
    let word = |i: usize| *workspace::parameters().add(i) as usize;
    attention::Shape {
        batch: word(0),
        seq_q: word(1),
        seq_k: word(2),
        heads: word(3),
        kv_heads: word(4),
        head_dim: word(5),
        stride_q: word(6),
        stride_k: word(7),
        stride_v: word(8),
        causal: word(9) != 0,
        scale,
        key_mask: key_mask as *const u8,
    }
}
#[no_mangle]
pub unsafe extern "C" fn attention(
    dtype: u32,
    scale: f32,
    key_mask: usize,
    o: usize,
    lse: usize,
    q: usize,
    k: usize,
    v: usize,
) {
    let shape = attention_shape(scale, key_mask);
    with_float!(dtype, T => {
        attention::forward(&shape, o as *mut T, lse as *mut f32, q as *const T, k as *const T, v as *const T)
    })
}
#[no_mangle]
pub unsafe extern "C" fn attention_backward(
    dtype: u32,
    scale: f32,
    key_mask: usize,
    dq: usize,
    dk: usize,
    dv: usize,
    d_o: usize,
    o: usize,
    lse: usize,
    q: usize,
    k: usize,
    v: usize,
) {
    let shape = attention_shape(scale, key_mask);
    with_float!(dtype, T => attention_backward::backward(&shape, &attention_backward::Arrays {
        dq: dq as *mut T,
        dk: dk as *mut T,
        dv: dv as *mut T,
        d_o: d_o as *const T,
        o: o as *const T,
        lse: lse as *const f32,
        q: q as *const T,
        k: k as *const T,
        v: v as *const T,
    }))
}

// Optimizers.

#[no_mangle]
pub unsafe extern "C" fn adamw(
    param: usize,
    grad: usize,
    exp_avg: usize,
    exp_avg_sq: usize,
    ranges: usize,
    num_ranges: usize,
    beta1: f64,
    beta2: f64,
    eps: f64,
    bias_correction1: f64,
    bias_correction2_sqrt: f64,
) {
    optimizer::adamw(
        param as *mut f32,
        grad as *const f32,
        exp_avg as *mut f32,
        exp_avg_sq as *mut f32,
        ranges as *const optimizer::Range,
        num_ranges,
        optimizer::AdamW { beta1, beta2, eps, bias_correction1, bias_correction2_sqrt },
    )
}
#[no_mangle]
pub unsafe extern "C" fn sgd(
    param: usize,
    grad: usize,
    buffer: usize,
    ranges: usize,
    num_ranges: usize,
    momentum: f64,
    dampening: f64,
    nesterov: u32,
    first: u32,
) {
    optimizer::sgd(
        param as *mut f32,
        grad as *const f32,
        buffer as *mut f32,
        ranges as *const optimizer::Range,
        num_ranges,
        momentum,
        dampening,
        nesterov != 0,
        first != 0,
    )
}

// Ranks; addresses of the sources in the parameter area.

#[no_mangle]
pub unsafe extern "C" fn sum_ranks(
    dst_dtype: u32,
    dtype: u32,
    dst: usize,
    count: usize,
    n: usize,
    scale: f32,
    accumulate: u32,
) {
    let sources = workspace::parameters() as *const usize;
    if dtype == dtype::I64 {
        return collective::sum_i64(dst as *mut i64, sources, count, n, accumulate != 0);
    }
    with_float!(dst_dtype, D => with_float!(dtype, T => {
        collective::sum::<T, D>(dst as *mut D, sources, count, n, scale, accumulate != 0)
    }))
}

// Random numbers.

#[no_mangle]
pub unsafe extern "C" fn uniform(dst: usize, n: usize, key: f64, offset: f64, low: f32, high: f32) {
    philox::uniform(dst as *mut f32, n, key as u64, offset as u64, low, high)
}
#[no_mangle]
pub unsafe extern "C" fn normal(dst: usize, n: usize, key: f64, offset: f64, mean: f32, std: f32) {
    philox::normal(dst as *mut f32, n, key as u64, offset as u64, mean, std)
}

// Functions of one number.

#[no_mangle]
pub extern "C" fn exact_exp(x: f64) -> f64 {
    libm::exp(x)
}
#[no_mangle]
pub extern "C" fn exact_log(x: f64) -> f64 {
    libm::log(x)
}
#[no_mangle]
pub extern "C" fn exact_sin(x: f64) -> f64 {
    libm::sin(x)
}
#[no_mangle]
pub extern "C" fn exact_cos(x: f64) -> f64 {
    libm::cos(x)
}
#[no_mangle]
pub extern "C" fn exact_pow(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}
