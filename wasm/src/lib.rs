//! CPU kernels of fullyshard, for WASM modules and native libraries. This file is the list of their exports; each subject has
//! a file.
//!
//! A kernel's export takes its parameters in the order of the table in `src/device/kernels/`, and hands them to the
//! kernel as they are. Nothing is checked here: kernels rely on arrays that hold what the table states, and overlap as it
//! allows only. All `unsafe` here means that: pointers reach as far as the sizes beside them say. `packing.ts` of the table
//! packs every call. There is no allocator and no panic text (a panic traps); working space is `workspace.rs`.
#![cfg_attr(any(target_arch = "wasm32", feature = "native"), no_std)]
#![allow(
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::eq_op,
    clippy::needless_range_loop,
    clippy::should_implement_trait
)]

#[macro_use]
mod export;

pub mod ahead;
pub mod attention;
pub mod attention_backward;
pub mod attention_sinks;
pub mod blocks8;
pub mod collective;
pub mod conv;
pub mod dropout;
pub mod dtype;
pub mod elementwise;
pub mod embedding;
pub mod exact;
pub mod experts;
pub mod factors;
pub mod gated_delta;
pub mod index;
pub mod lion;
pub mod loss;
pub mod mask;
pub mod math;
pub mod matmul;
#[cfg(feature = "native")]
mod memory;
pub mod norm;
pub mod optimizer;
pub mod pack;
#[cfg(feature = "native")]
pub mod past_caches;
pub mod philox;
#[cfg(feature = "native")]
mod pool;
pub mod quantized;
pub mod reduce;
pub mod rope;
pub mod router;
pub mod simd;
#[cfg(target_arch = "aarch64")]
mod simd_neon;
#[cfg(not(any(target_arch = "wasm32", target_arch = "aarch64", target_feature = "avx2")))]
mod simd_portable;
#[cfg(not(any(target_arch = "aarch64", target_feature = "avx2")))]
mod simd_wasm;
#[cfg(target_feature = "avx2")]
mod simd_x86;
pub mod softmax;
pub mod status;
pub mod strided;
pub mod swiglu;
pub mod tile;
#[cfg(target_arch = "wasm32")]
mod tile_wasm;
pub mod topk;
pub mod unary;
pub mod workspace;

use attention::Shape;
use attention_backward::Arrays;
use core::ops::Range;
use dropout::Dropout;
#[cfg(feature = "native")]
use export::Words;
use export::{Address, Argument, Large, Size, Switch};
use gated_delta::backward::{backward as gated_delta_gradients, Gradients};
use gated_delta::{floats, Inputs, Shape as Delta};
use index::Index;
use router::Routing;
use workspace::Workspace;

#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn trap(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
#[cfg(feature = "native")]
#[panic_handler]
fn trap(_: &core::panic::PanicInfo) -> ! {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("ud2", options(noreturn))
    }
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("brk #1", options(noreturn))
    }
}

export! { space:
    heap_base() -> usize = workspace::heap_base[space];
    list_area() -> usize = workspace::lists[space];

    fill(dtype: u32, n: Size, value: f64, dst: Address) = elementwise::fill over n;
    cast(dst_dtype: u32, src_dtype: u32, n: Size, dst: Address, src: Address) = elementwise::cast over n;
    copy_strided(dtype: u32, shape: Address, ndim: Size, dst_strides: Address, src_strides: Address, dst: Address,
        src: Address) = strided::copy[space];
    unary<T>(op: u32, n: Size, p0: f32, p1: f32, dst: Address, src: Address) = unary::forward over n;
    unary_backward<T>(op: u32, n: Size, p0: f32, p1: f32, dx: Address, dy: Address, x: Address)
        = unary::backward[space] over n;
    binary<T>(op: u32, shape: Address, ndim: Size, a_strides: Address, b_strides: Address, dst: Address, a: Address,
        b: Address) = strided::binary[space];
    compare(dtype: u32, op: u32, shape: Address, ndim: Size, a_strides: Address, b_strides: Address, dst: Address,
        a: Address, b: Address) = mask::compare[space];
    select(dtype: u32, shape: Address, ndim: Size, condition_strides: Address, a_strides: Address, b_strides: Address,
        dst: Address, condition: Address, a: Address, b: Address) = mask::select[space];
    gather(dtype: u32, outer: Size, n: Size, m: Size, inner: Size, stride_outer: Size, stride: Size,
        stride_inner: Size, dst: Address, src: Address, index: Address, status: Address)
        = index::gather(
            dtype, &Index { outer, n, m, inner, stride_outer, stride, stride_inner, index, status }, dst, src);
    scatter_add<T>(outer: Size, n: Size, m: Size, inner: Size, stride_outer: Size, stride: Size, stride_inner: Size,
        dst: Address, src: Address, index: Address, status: Address)
        = index::scatter_add(
            &Index { outer, n, m, inner, stride_outer, stride, stride_inner, index, status }, dst, src);
    accumulate<D, S>(n: Size, dst: Address, src: Address) = elementwise::accumulate over n;
    scale<T>(n: Size, factor: f32, dst: Address, src: Address) = elementwise::scale over n;
    scale_by<T>(n: Size, dst: Address, src: Address, factor: Address) = elementwise::scale_by over n;
    max_abs<T>(n: Size, dst: Address, src: Address) = elementwise::max_abs;
    reduce<T>(op: u32, outer: Size, n: Size, inner: Size, dst: Address, src: Address) = reduce::reduce[space];
    argmax<T>(rows: Size, cols: Size, dst: Address, src: Address) = reduce::argmax over rows * cols;
    cumsum<T>(rows: Size, cols: Size, reverse: Switch, dst: Address, src: Address) = reduce::cumsum over rows * cols;

    gemm(dtype: u32, out_dtype: u32, trans_a: Switch, trans_b: Switch, m: Size, n: Size, k: Size, alpha: f32, beta: f32, lda: Size, ldb: Size,
        ldc: Size, batch: Size, stride_a: Size, stride_b: Size, stride_c: Size, a: Address, b: Address, c: Address)
        = matmul::batch[space];
    quantize(format: u32, n: Size, blocks: Size, block_bytes: Size, dst: Address, src: Address)
        = quantized::quantize[space];
    dequantize<T>(format: u32, n: Size, blocks: Size, block_bytes: Size, dst: Address, src: Address)
        = quantized::dequantize[space];
    gemm_quantized(dtype: u32, out_dtype: u32, format: u32, trans_b: Switch, m: Size, n: Size, k: Size, alpha: f32, beta: f32,
        lda: Size, ldc: Size, blocks: Size, block_bytes: Size, a: Address, b: Address, c: Address)
        = quantized::product[space];
    attention<T>(batch: Size, seq_q: Size, seq_k: Size, heads: Size, kv_heads: Size, head_dim: Size, value_dim: Size, stride_q: Size,
        stride_k: Size, stride_v: Size, scale: f32, softcap: f32, causal: Switch, window: Size, mask_rows: Size, p: f64, key: Large,
        sample: Large, key_mask: Address, starts: Address, o: Address, lse: Address,
        q: Address, k: Address, v: Address)
        = attention::forward(
            &Shape { batch, seq_q, seq_k, heads, kv_heads, head_dim, value_dim, stride_q, stride_k, stride_v, scale, softcap, causal, window,
                mask_rows, key_mask, starts, dropout: Dropout { p, key, sample }, space },
            o, lse, q, k, v);
    attention_backward<T>(batch: Size, seq_q: Size, seq_k: Size, heads: Size, kv_heads: Size, head_dim: Size,
        value_dim: Size, stride_q: Size, stride_k: Size, stride_v: Size, scale: f32, softcap: f32, causal: Switch, window: Size, mask_rows: Size, p: f64, key: Large,
        sample: Large, key_mask: Address, starts: Address, dq: Address,
        dk: Address, dv: Address, d_o: Address, o: Address, lse: Address, q: Address, k: Address, v: Address)
        = attention_backward::backward(
            &Shape { batch, seq_q, seq_k, heads, kv_heads, head_dim, value_dim, stride_q, stride_k, stride_v, scale, softcap, causal, window,
                mask_rows, key_mask, starts, dropout: Dropout { p, key, sample }, space },
            &Arrays { dq, dk, dv, d_o, o, lse, q, k, v });

    attention_sinks<T>(batch: Size, seq: Size, heads: Size, head_dim: Size, o: Address, lse: Address, sinks: Address)
        = attention_sinks::forward[space];
    attention_sinks_backward<T>(batch: Size, seq: Size, heads: Size, head_dim: Size, dsinks: Address, d_o: Address,
        o: Address, lse: Address, sinks: Address) = attention_sinks::backward[space];

    topk<T>(rows: Size, cols: Size, k: Size, indices: Address, x: Address) = topk::rows[space] over rows * cols;
    softmax<T>(log: Switch, rows: Size, cols: Size, y: Address, x: Address) = softmax::forward over rows * cols;
    softmax_backward<T>(log: Switch, rows: Size, cols: Size, dx: Address, dy: Address, y: Address) = softmax::backward over rows * cols;
    rms_norm<T>(rows: Size, cols: Size, eps: f64, zero_centered: Switch, y: Address, rstd: Address, x: Address, w: Address) = norm::rms over rows * cols;
    rms_norm_backward<T>(rows: Size, cols: Size, zero_centered: Switch, dx: Address, dw: Address, dy: Address, x: Address, w: Address,
        rstd: Address) = norm::rms_backward[space];
    layer_norm<T>(rows: Size, cols: Size, eps: f64, y: Address, mean: Address, rstd: Address, x: Address, w: Address,
        b: Address) = norm::layer over rows * cols;
    layer_norm_backward<T>(rows: Size, cols: Size, dx: Address, dw: Address, db: Address, dy: Address, x: Address,
        w: Address, mean: Address, rstd: Address) = norm::layer_backward[space];
    rope<T>(batch: Size, seq: Size, heads: Size, head_dim: Size, start: Size, half: Size, table_rows: Size, stride: Size,
        interleaved: Switch, inverse: Switch, y: Address, x: Address, cos: Address, sin: Address, positions: Address, status: Address)
        = rope::rotate[space];
    rope_table(positions: Size, half: Size, scale: f32, cos: Address, sin: Address, inv_freq: Address) = rope::table;
    causal_conv<T>(batch: Size, seq: Size, channels: Size, width: Size, starts: Address, y: Address, x: Address, w: Address)
        = conv::forward[space];
    causal_conv_backward<T>(batch: Size, seq: Size, channels: Size, width: Size, starts: Address, dx: Address, dw: Address, dy: Address,
        x: Address, w: Address) = conv::backward[space];
    gated_delta(dtype: u32, batch: Size, seq: Size, key_heads: Size, value_heads: Size, key_dim: Size, value_dim: Size,
        chunk: Size, chunks: Size, scale: f32, starts: Address, o: Address, state: Address, states: Address, q: Address, k: Address,
        v: Address, g: Address, beta: Address)
        = gated_delta::forward(
            &Delta { batch, seq, key_heads, value_heads, key_dim, value_dim, chunk, chunks, scale, starts, space },
            floats(dtype, o), state, states,
            &Inputs {
                q: floats(dtype, q), k: floats(dtype, k), v: floats(dtype, v), g: floats(dtype::F32, g),
                beta: floats(dtype, beta)
            });
    gated_delta_backward(dtype: u32, batch: Size, seq: Size, key_heads: Size, value_heads: Size, key_dim: Size,
        value_dim: Size, chunk: Size, chunks: Size, scale: f32, starts: Address, d_state: Address, dq: Address, dk: Address, dv: Address,
        dg: Address, dbeta: Address, d_o: Address, states: Address, q: Address, k: Address, v: Address, g: Address,
        beta: Address)
        = gated_delta_gradients(
            &Delta { batch, seq, key_heads, value_heads, key_dim, value_dim, chunk, chunks, scale, starts, space },
            d_state,
            &Gradients {
                dq: floats(dtype, dq), dk: floats(dtype, dk), dv: floats(dtype, dv), dg: floats(dtype::F32, dg),
                dbeta: floats(dtype, dbeta)
            },
            floats(dtype, d_o), states,
            &Inputs {
                q: floats(dtype, q), k: floats(dtype, k), v: floats(dtype, v), g: floats(dtype::F32, g),
                beta: floats(dtype, beta)
            });
    dropout<T>(batch: Size, rows: Size, cols: Size, p: f64, key: Large, sample: Large, y: Address, x: Address)
        = dropout::apply(space, batch, rows, cols, &Dropout { p, key, sample }, y, x);
    embedding<T>(n: Size, vocab: Size, cols: Size, y: Address, w: Address, ids: Address, status: Address)
        = embedding::gather[space];
    embedding_backward<T>(n: Size, vocab: Size, cols: Size, padding: i32, dw: Address, dy: Address, ids: Address)
        = embedding::scatter_add[space];
    cross_entropy<T>(rows: Size, cols: Size, ignore: i32, first_row: Size, label_smoothing: f64, z_loss: f64,
        losses: Address, dlogits: Address, logits: Address, labels: Address, status: Address) = loss::cross_entropy[space];
    swiglu<T>(n: Size, y: Address, gate: Address, up: Address) = swiglu::forward over n;
    swiglu_backward<T>(n: Size, dgate: Address, dup: Address, dy: Address, gate: Address, up: Address)
        = swiglu::backward over n;

    route<T>(scoring: u32, rows: Size, experts: Size, top_k: Size, groups: Size, top_groups: Size, group_best: Size,
        normalize: Switch, scale: f32, jitter: f32, weights: Address, chosen: Address, logits: Address, bias: Address,
        noise: Address)
        = router::forward(
            &Routing { scoring, rows, experts, top_k, groups, top_groups, group_best, normalize, scale, jitter, space },
            weights, chosen, logits, bias, noise) over rows * experts;
    route_backward<T>(scoring: u32, rows: Size, experts: Size, top_k: Size, normalize: Switch, scale: f32, jitter: f32,
        dlogits: Address, dweights: Address, chosen: Address, logits: Address)
        = router::backward(
            &Routing { scoring, rows, experts, top_k, groups: 1, top_groups: 1, group_best: 1, normalize, scale, jitter,
                space },
            dlogits, dweights, chosen, logits) over rows * experts;
    sort_pairs(pairs: Size, experts: Size, places: Address, ends: Address, chosen: Address) = experts::sort;
    combine_pairs<T>(rows: Size, count: Size, cols: Size, y: Address, x: Address, places: Address, weights: Address)
        = experts::combine over rows * count * cols;
    combine_pairs_backward<T>(rows: Size, count: Size, cols: Size, dx: Address, dweights: Address, dy: Address,
        x: Address, places: Address, weights: Address) = experts::combine_backward over rows * count * cols;
    grouped_gemm(dtype: u32, trans_b: Switch, groups: Size, rows: Size, n: Size, k: Size, c: Address, a: Address,
        b: Address, ends: Address) = experts::product[space];
    grouped_gemm_outer(dtype: u32, out_dtype: u32, groups: Size, rows: Size, m: Size, n: Size, c: Address, a: Address,
        b: Address, ends: Address) = experts::outer[space];
    grouped_bias<T>(groups: Size, rows: Size, cols: Size, x: Address, bias: Address, ends: Address)
        = experts::add_bias[space];
    grouped_sum(groups: Size, rows: Size, cols: Size, y: Address, x: Address, ends: Address) = experts::sums[space];
    clamped_swiglu<T>(n: Size, alpha: f32, limit: f32, y: Address, gate_up: Address) = experts::clamped_swiglu over n;
    clamped_swiglu_backward<T>(n: Size, alpha: f32, limit: f32, dgate_up: Address, dy: Address, gate_up: Address)
        = experts::clamped_swiglu_backward over n;

    clear_accumulator(accumulator: Address, status: Address) = exact::clear;
    sum_powers<T>(power: u32, n: Size, block: Size, accumulator: Address, src: Address) = exact::add_powers[space];
    largest(n: Size, dst: Address, src: Address, status: Address) = exact::largest;
    accumulate_largest(accumulator: Address, src: Address) = exact::accumulate_largest;
    clip_factor(power: u32, max_norm: f64, if_nonfinite: u32, norm: Address, factor: Address, gate: Address,
        overflow: Address, accumulator: Address, scale: Address, status: Address) = exact::clip_factor;
    update_scale(growth: f64, backoff: f64, interval: u32, scale: Address, progress: Address, overflow: Address)
        = exact::update_scale;
    adamw(n: Size, num_states: Size, num_records: Size, param: Address, grad: Address, exp_avg: Address,
        exp_avg_sq: Address, records: Address, steps: Address, gate: Address) = optimizer::adamw[space];
    sgd(n: Size, num_states: Size, num_records: Size, param: Address, grad: Address, momentum_buffer: Address,
        records: Address, steps: Address, gate: Address) = optimizer::sgd[space];
    lion(n: Size, num_states: Size, num_records: Size, param: Address, grad: Address, exp_avg: Address, records: Address,
        steps: Address, gate: Address) = lion::lion[space];
    lerp(n: Size, weight: f64, dst: Address, src: Address, factor: Address, gate: Address) = lion::lerp over n;
    largest_of_blocks(blocks: Size, n: Size, first: Size, block: Size, dst: Address, src: Address)
        = blocks8::largest over blocks * block;
    quantize_blocks(n: Size, first: Size, block: Size, blocks: Size, codes: Address, src: Address, largest: Address,
        map: Address, gate: Address)
        = blocks8::quantize over n;
    dequantize_blocks(n: Size, first: Size, block: Size, blocks: Size, dst: Address, codes: Address, largest: Address,
        map: Address)
        = blocks8::dequantize over n;
    sum_ranks(dtype: u32, dst_dtype: u32, n: Size, accumulate: Switch, past_caches: Switch, dst: Address, sources: Address,
        count: Size, scale: Address) = collective::sum_ranks over n * count;
    uniform(n: Size, key: Large, offset: Large, low: f32, high: f32, dst: Address) = philox::uniform over n;
    sample_uniform(batch: Size, rows: Size, cols: Size, key: Large, sample: Large, low: f32, high: f32, dst: Address)
        = philox::sample_uniform;
    normal(n: Size, key: Large, offset: Large, mean: f32, std: f32, dst: Address) = philox::normal over n;

    portable_exp(x: f64) -> f64 = libm::exp;
    portable_log(x: f64) -> f64 = libm::log;
    portable_sin(x: f64) -> f64 = libm::sin;
    portable_cos(x: f64) -> f64 = libm::cos;
    portable_pow(x: f64, y: f64) -> f64 = libm::pow;
}

#[cfg(feature = "native")]
export! { space:
    copy_past_caches(n: Size, dst: Address, src: Address) = past_caches::copy over n;
}

/// Threads that share the work of calls, by the address of their control block.
#[cfg(feature = "native")]
mod threads {
    use crate::pool::{self, Pool};

    #[no_mangle]
    unsafe extern "C" fn pool_bytes(pool: *const Pool) -> usize {
        pool::bytes(pool)
    }
    #[no_mangle]
    unsafe extern "C" fn pool_helpers(pool: *const Pool) -> usize {
        pool::helpers(pool)
    }
    #[no_mangle]
    unsafe extern "C" fn pool_work(pool: *const Pool) {
        pool::work(pool)
    }
    #[no_mangle]
    unsafe extern "C" fn pool_end(pool: *const Pool) {
        pool::end(pool)
    }
}
