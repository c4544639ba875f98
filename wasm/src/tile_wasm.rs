//! The innermost loops of products for compilers of WASM: one for engines that fuse a product with its sum (V8), one for those
//! that do not (JavaScriptCore). The sums of an element are the same chain in both.
//!
//! A factor that is one value for all lanes costs the latter two or three instructions, of which shuffles wait for the units
//! that products need. So there a left operand is spread before its tiles are computed: each value fills a vector of its own, and
//! one instruction loads it from then on. V8 may check each load's address, so it gets fewer loads.
use crate::factors::Widened;
use crate::pack::pack;
use crate::simd::{F32s, LANES};
use crate::tile::{Left, MR, NR};

const _: () = assert!(MR == LANES);

/// Words that a value of a spread panel takes.
pub const SPREAD: usize = LANES;

/// True if this engine is faster with spread panels. The strict build cannot ask its engine, and takes none.
#[inline(always)]
pub fn spreads() -> bool {
    // The square is 1 + 2^-11 + 2^-24, of which a product that is rounded loses the last.
    let (factor, sum) = (F32s::splat(1.0 + 1.0 / 4096.0), F32s::splat(-1.0 - 1.0 / 2048.0));
    cfg!(target_feature = "relaxed-simd") && factor.madd(factor, sum).lanes()[0] == 0.0
}

/// Spreads a packed panel's values, `count` of them, which may lie at the end of `dst`.
pub unsafe fn spread_panel(dst: *mut f32, panel: *const f32, count: usize) {
    for i in (0..count).step_by(LANES) {
        for (r, value) in F32s::load_splats(panel.add(i)).into_iter().enumerate() {
            value.store(dst.add((i + r) * SPREAD));
        }
    }
}

/// `depth` steps of a left operand in place as a panel, in `dst` where it has to be another.
#[inline(never)]
pub unsafe fn prepared(dst: *mut f32, a: Left, depth: usize) -> Left {
    if !cfg!(target_feature = "relaxed-simd") {
        return a;
    }
    if !spreads() {
        if a.row == 1 {
            return a;
        }
        pack::<f32, Widened, MR>(dst, a.data, a.row, a.step, MR, depth);
    } else if a.row == 1 {
        for s in 0..depth {
            spread_panel(dst.add(s * MR * SPREAD), a.data.add(s * a.step), MR);
        }
    } else {
        let whole = depth / LANES * LANES;
        for s in (0..whole).step_by(LANES) {
            for i in 0..MR {
                for (k, value) in F32s::load_splats(a.data.add(i * a.row + s)).into_iter().enumerate() {
                    value.store(dst.add(((s + k) * MR + i) * SPREAD));
                }
            }
        }
        for s in whole..depth {
            for i in 0..MR {
                F32s::load_splat(a.data.add(i * a.row + s)).store(dst.add((s * MR + i) * SPREAD));
            }
        }
    }
    Left::panel(dst)
}

/// Adds the product of a left operand whose rows lie next to each other: compilers keep more of the sums in registers where
/// a column's come together.
#[inline(always)]
pub unsafe fn add_neighbors<const R: usize, const N: usize>(
    sums: &mut [[F32s; N]; R],
    depth: usize,
    a: Left,
    b: *const f32,
) {
    let (mut left, mut b) = (a.data, b);
    for _ in 0..depth {
        let right: [F32s; N] = core::array::from_fn(|j| F32s::load(b.add(LANES * j)));
        let values: [F32s; MR] = F32s::load_splats(left);
        let mut add = |i: usize, j: usize| sums[i][j] = values[i].madd(right[j], sums[i][j]);
        if cfg!(target_feature = "relaxed-simd") {
            (0..R).for_each(|i| (0..N).for_each(|j| add(i, j)));
        } else {
            (0..N).for_each(|j| (0..R).for_each(|i| add(i, j)));
        }
        left = left.add(a.step);
        b = b.add(NR);
    }
}

/// Adds the product of a spread left panel and a right panel over `depth` steps, two at a time: which halves what the loop
/// itself costs.
#[inline(always)]
pub unsafe fn add_spread<const R: usize, const N: usize>(
    sums: &mut [[F32s; N]; R],
    depth: usize,
    a: *const f32,
    b: *const f32,
) {
    let (mut a, mut b) = (a, b);
    let mut left = depth;
    while left >= 2 {
        add_step(sums, a, b);
        add_step(sums, a.add(MR * SPREAD), b.add(NR));
        a = a.add(2 * MR * SPREAD);
        b = b.add(2 * NR);
        left -= 2;
    }
    if left > 0 {
        add_step(sums, a, b);
    }
}

#[inline(always)]
unsafe fn add_step<const R: usize, const N: usize>(sums: &mut [[F32s; N]; R], a: *const f32, b: *const f32) {
    let right: [F32s; N] = core::array::from_fn(|j| F32s::load(b.add(LANES * j)));
    for i in 0..R {
        let value = F32s::load(a.add(i * SPREAD));
        for j in 0..N {
            sums[i][j] = value.madd(right[j], sums[i][j]);
        }
    }
}
