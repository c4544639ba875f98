//! Matrix products against plain loops.
mod support;

use fullyshard_wasm::dtype::{Bf16, Element, Half};
use fullyshard_wasm::matmul::{gemm, Matrix, Product};
use fullyshard_wasm::workspace::Workspace;
use support::{close, values};

fn check<T: Element, C: Element>(p: Product, trans_a: bool, trans_b: bool, unit: f64) {
    let store = |v: Vec<f32>| -> Vec<T> {
        let mut out = Vec::with_capacity(v.len());
        for x in v {
            let mut slot = core::mem::MaybeUninit::<T>::uninit();
            unsafe {
                T::store(slot.as_mut_ptr(), x);
                out.push(slot.assume_init());
            }
        }
        out
    };
    let (lda, ldb, ldc) = (if trans_a { p.m } else { p.k } + 1, if trans_b { p.k } else { p.n } + 2, p.n + 3);
    let a = store(values(p.m.max(p.k) * lda + lda, 1, -1.0, 1.0));
    let b = store(values(p.n.max(p.k) * ldb + ldb, 2, -1.0, 1.0));
    let mut c: Vec<C> = Vec::with_capacity(p.m * ldc + 1);
    for x in values(p.m * ldc + 1, 3, -1.0, 1.0) {
        let mut slot = core::mem::MaybeUninit::<C>::uninit();
        unsafe {
            C::store(slot.as_mut_ptr(), if p.beta == 0.0 { f32::NAN } else { x });
            c.push(slot.assume_init());
        }
    }
    let before: Vec<f64> = c.iter().map(|x| unsafe { C::load(x) } as f64).collect();
    unsafe {
        gemm(
            Workspace::here(),
            p,
            Matrix::new(a.as_ptr(), lda, trans_a),
            Matrix::new(b.as_ptr(), ldb, trans_b),
            c.as_mut_ptr(),
            ldc,
        );
    }
    for (at, slot) in c.iter().enumerate() {
        let (i, j) = (at / ldc, at % ldc);
        let got = unsafe { C::load(slot) } as f64;
        if j >= p.n || i >= p.m {
            close(got, before[at], 0.0, 0.0, "padding");
            continue;
        }
        let mut sum = 0.0;
        for s in 0..p.k {
            let x = unsafe { T::load(&a[if trans_a { s * lda + i } else { i * lda + s }]) } as f64;
            let y = unsafe { T::load(&b[if trans_b { j * ldb + s } else { s * ldb + j }]) } as f64;
            sum += x * y;
        }
        let kept = if p.beta == 0.0 { 0.0 } else { p.beta as f64 * before[at] };
        let want = p.alpha as f64 * sum + kept;
        close(got, want, unit, 3e-7 * ((p.k + 1) as f64).sqrt(), &format!("{} {} {} [{i}, {j}]", p.m, p.n, p.k));
    }
}

#[test]
fn every_transpose_size_and_factor() {
    let sizes =
        [(1, 1, 1), (4, 8, 4), (3, 40, 70), (5, 9, 0), (17, 11, 260), (131, 13, 33), (9, 515, 5), (0, 3, 3), (6, 1, 9)];
    for (m, n, k) in sizes {
        for (alpha, beta) in [(1.0, 0.0), (0.5, 1.0), (-1.5, 0.25), (0.0, 2.0)] {
            for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
                let p = Product { m, n, k, alpha, beta };
                check::<f32, f32>(p, trans_a, trans_b, 1e-6);
                check::<Bf16, f32>(p, trans_a, trans_b, 1e-6);
                check::<Bf16, Bf16>(p, trans_a, trans_b, 0.004);
                check::<Half, f32>(p, trans_a, trans_b, 1e-6);
                check::<Half, Half>(p, trans_a, trans_b, 0.0005);
            }
        }
    }
    check::<Bf16, Bf16>(Product { m: 1030, n: 5, k: 7, alpha: 1.0, beta: 0.0 }, false, false, 0.004);
}
