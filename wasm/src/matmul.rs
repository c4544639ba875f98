//! Matrix products: packed, blocked, register-tiled.
//!
//! Blocks along the summed dim are `KC` long whatever the other sizes, so an element's bits depend on its row, its
//! column and `k` alone (products with few rows over a transposed `b` take another path; see [`is_skinny`]).
use crate::ahead::{Ahead, Lines};
use crate::dtype::{load_part, Element};
use crate::factors::words;
use crate::pack::{pack, pack_left, spread};
use crate::scratch_areas;
use crate::simd::sum_lanes;
use crate::strided::gather;
use crate::tile::{tile, tile_part, GRAIN, MR, NR, SPREAD};
use crate::with_wider;
use crate::workspace::Workspace;
use core::ops::Range;

const MC: usize = (128 / SPREAD).next_multiple_of(MR);
const KC: usize = 256;
const NC: usize = 512;
/// Rows kept as f32 at a time where the output is rounded.
const ROUNDED_ROWS: usize = 1024;
/// Multiplications and additions that take as long as an element of a sum of two arrays.
const WORK: usize = 16;
/// Elements of a right operand that each thread packs for itself where it has one block of rows.
const LITTLE: usize = 1 << 15;
/// Rows up to which a transposed `b` is read in place, along its own rows.
const SKINNY_ROWS: usize = 3;
/// Columns of a quantized right operand that are unpacked at once.
const UNPACKED_COLUMNS: usize = 64usize.next_multiple_of(NR);
/// Elements of a row that is unpacked at once for few rows of the left operand; the room of [`Space::rounded`].
const UNPACKED_ROW: usize = ROUNDED_ROWS * NC;

/// Words at the start of the scratch area that a product of f32 into f32 packs its operands into.
pub const PANEL_WORDS: usize = MC * KC * SPREAD + KC * NC;

scratch_areas! { Space {
    left: MC * KC * SPREAD,       // panels of a block's rows
    right: KC * NC,               // panels of its columns
    rounded: ROUNDED_ROWS * NC,   // sums that are rounded together
    unpacked: KC * UNPACKED_COLUMNS, // elements of a quantized right operand
} }

/// One stored matrix: element (i, j) lies at `i * row + j * col`.
#[derive(Clone, Copy)]
pub struct Matrix<T> {
    pub data: *const T,
    pub row: usize,
    pub col: usize,
}

impl<T> Matrix<T> {
    /// A matrix with row stride `ld`, or its transpose.
    pub fn new(data: *const T, ld: usize, transposed: bool) -> Matrix<T> {
        let (row, col) = if transposed { (1, ld) } else { (ld, 1) };
        Matrix { data, row, col }
    }
    unsafe fn at(&self, i: usize, j: usize) -> *const T {
        self.data.add(i * self.row + j * self.col)
    }
    /// The cache lines of some rows and columns from an element on, which may lie outside the matrix.
    #[inline(always)]
    fn lines(&self, i: usize, j: usize, rows: usize, cols: usize) -> Lines {
        let (stride, runs, count) = if self.row == 1 { (self.col, cols, rows) } else { (self.row, rows, cols) };
        Lines::new(self.data.wrapping_add(i * self.row + j * self.col), stride, runs, count)
    }
}

/// A right operand, whose elements lie in memory or are unpacked from it.
pub trait Right: Copy {
    /// What it is multiplied as.
    type Stored: Element;
    /// Its columns lie along its memory.
    fn is_transposed(self) -> bool;
    /// The elements of a part as they lie in memory, or at `unpacked`, which has room for them.
    unsafe fn part(self, i: usize, j: usize, rows: usize, cols: usize, unpacked: *mut f32) -> Matrix<Self::Stored>;
    /// Columns of which `part` is asked at once.
    fn together(self, columns: usize) -> usize {
        columns.min(UNPACKED_COLUMNS)
    }
    /// The lines that are fetched before the part is packed.
    fn lines_ahead(self, _i: usize, _j: usize, _rows: usize, _cols: usize) -> Lines {
        Lines::new(core::ptr::null::<f32>(), 0, 0, 0)
    }
}

impl<T: Element> Right for Matrix<T> {
    type Stored = T;
    #[inline(always)]
    fn is_transposed(self) -> bool {
        self.row == 1 && self.col != 1
    }
    #[inline(always)]
    unsafe fn part(self, i: usize, j: usize, _rows: usize, _cols: usize, _unpacked: *mut f32) -> Matrix<T> {
        Matrix { data: self.at(i, j), ..self }
    }
    #[inline(always)]
    fn together(self, columns: usize) -> usize {
        columns
    }
    #[inline(always)]
    fn lines_ahead(self, i: usize, j: usize, rows: usize, cols: usize) -> Lines {
        self.lines(i, j, rows, cols)
    }
}

/// Sizes and factors of a product.
#[derive(Clone, Copy)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub alpha: f32,
    pub beta: f32,
}

/// `c = alpha * op(a) @ op(b) + beta * c` for each matrix of a batch; `c` is of the dtype of the others, or f32.
#[inline(never)]
pub unsafe fn batch(
    space: Workspace,
    dtype: u32,
    out_dtype: u32,
    trans_a: bool,
    trans_b: bool,
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    beta: f32,
    lda: usize,
    ldb: usize,
    ldc: usize,
    batch: usize,
    stride_a: usize,
    stride_b: usize,
    stride_c: usize,
    a: *const u8,
    b: *const u8,
    c: *mut u8,
) {
    let p = Product { m, n, k, alpha, beta };
    with_wider!(dtype, out_dtype, T, C => space.split(batch, m * n * k / WORK, |part, space| for i in part {
        let a = Matrix::new((a as *const T).add(i * stride_a), lda, trans_a);
        let b = Matrix::new((b as *const T).add(i * stride_b), ldb, trans_b);
        gemm(space, p, a, b, (c as *mut C).add(i * stride_c), ldc);
    }))
}

/// `c = alpha * a @ b + beta * c`.
/// The matrices may not overlap `c`.
pub unsafe fn gemm<R: Right, C: Element>(
    space: Workspace,
    p: Product,
    a: Matrix<R::Stored>,
    b: R,
    c: *mut C,
    ldc: usize,
) {
    if p.m == 0 || p.n == 0 {
        return;
    }
    if p.k == 0 || p.alpha == 0.0 {
        return keep(p, c, ldc);
    }
    if is_skinny(p, b) {
        return space.split(p.n, p.m * p.k / 4, |part, own| skinny(p, a, b, c, ldc, part, Space::new(own).rounded));
    }
    let w = Space::new(space);
    for jc in (0..p.n).step_by(NC) {
        let nc = NC.min(p.n - jc);
        if C::IS_F32 {
            block(space, p, a, b, 0, p.m, jc, nc, (c as *mut f32).add(jc), ldc, p.alpha, p.beta);
        } else {
            for i0 in (0..p.m).step_by(ROUNDED_ROWS) {
                let rows = ROUNDED_ROWS.min(p.m - i0);
                block(space, p, a, b, i0, rows, jc, nc, w.rounded, NC, 1.0, 0.0);
                space.split(rows, nc, |part, _| {
                    for i in part {
                        finish(c.add((i0 + i) * ldc + jc), w.rounded.add(i * NC), nc, p.alpha, p.beta);
                    }
                });
            }
        }
    }
}

/// Rows `i0 .. i0 + rows` and columns `jc .. jc + nc` of the product, into `c` (their first element).
#[inline(never)]
unsafe fn block<T: Element, R: Right<Stored = T>>(
    space: Workspace,
    p: Product,
    a: Matrix<T>,
    b: R,
    i0: usize,
    rows: usize,
    jc: usize,
    nc: usize,
    c: *mut f32,
    ldc: usize,
    alpha: f32,
    beta: f32,
) {
    let right = Space::new(space).right;
    let whole = block_rows(space, rows);
    let blocks = rows.div_ceil(whole);
    let mut pc = 0;
    while pc < p.k {
        let kc = KC.min(p.k - pc);
        let depth = words::<T, T::Factors>(kc);
        let beta = if pc == 0 { beta } else { 1.0 };
        let pack_columns = |right: *mut f32, panels: Range<usize>, unpacked: *mut f32| {
            let (begin, end) = (panels.start * NR, nc.min(panels.end * NR));
            let together = b.together(end - begin).max(NR);
            for j in (begin..end).step_by(together) {
                let count = together.min(end - j);
                let part = b.part(pc, jc + j, kc, count, unpacked);
                pack::<T, T::Factors, NR>(right.add(j * depth), part.data, part.col, part.row, count, kc);
            }
        };
        let panels = nc.div_ceil(NR);
        // To pack little is faster than to fetch it from the cache of another thread that has.
        let each_packs = blocks > 1 && blocks == space.threads() && nc * kc <= LITTLE;
        if !each_packs {
            space.split(panels, NR * kc, |panels, own| pack_columns(right, panels, Space::new(own).unpacked));
        }
        // While a block of rows is multiplied, what is packed next is fetched. Of the left operand that is the next block of rows;
        // behind the last one, the first block of the next steps. Of the right operand it is these columns at the next steps; behind
        // the last steps, the next columns. All blocks of rows share that work, each by its number of rows.
        let next_rows = |ic: usize, mc: usize| {
            let next = ic + mc;
            if next < rows {
                a.lines(i0 + next, pc, whole.min(rows - next), kc)
            } else {
                a.lines(i0, pc + kc, whole.min(rows), KC.min(p.k - pc - kc))
            }
        };
        let next_columns = |ic: usize, mc: usize| {
            let (step, column) = if pc + kc < p.k { (pc + kc, jc) } else { (0, jc + nc) };
            let (steps, columns) = (KC.min(p.k - step), NC.min(p.n - column));
            b.lines_ahead(step, column, steps, columns).part(ic, mc, rows)
        };
        space.split(blocks, whole * nc * kc / WORK, |blocks, own| {
            let Space { left, right: own_right, unpacked, .. } = Space::new(own);
            let right = if each_packs { own_right } else { right };
            if each_packs {
                pack_columns(right, 0..panels, unpacked);
            }
            for ic in blocks.map(|block| block * whole) {
                let mc = whole.min(rows - ic);
                pack_left::<T>(left, a.at(i0 + ic, pc), a.row, a.col, mc, kc);
                let tiles = panels * mc.div_ceil(MR);
                let mut ahead = Ahead::new(ldc, [next_rows(ic, mc), next_columns(ic, mc)], tiles, depth);
                let mut product = |i: usize, j: usize| {
                    let (pa, pb) = (left.add(i * depth * spread()), right.add(j * depth));
                    let pc = c.add((ic + i) * ldc + j);
                    ahead.begin_tile(pc);
                    if mc - i >= MR && nc - j >= NR {
                        tile::<T::Factors>(depth, pa, pb, pc, ldc, alpha, beta, &mut ahead);
                    } else {
                        let (rows, cols) = (MR.min(mc - i), NR.min(nc - j));
                        tile_part::<T::Factors>(depth, pa, pb, pc, ldc, alpha, beta, rows, cols, &mut ahead);
                    }
                };
                // The wider panel stays in the nearest cache while the other operand's panels go by.
                if MR * spread() > NR {
                    for i in (0..mc).step_by(MR) {
                        for j in (0..nc).step_by(NR) {
                            product(i, j);
                        }
                    }
                } else {
                    for j in (0..nc).step_by(NR) {
                        for i in (0..mc).step_by(MR) {
                            product(i, j);
                        }
                    }
                }
            }
        });
        pc += KC;
    }
}

/// Rows of a block: such that each thread has as many blocks, and at most `MC`.
#[inline(always)]
unsafe fn block_rows(space: Workspace, rows: usize) -> usize {
    let threads = space.threads();
    if threads < 2 {
        return MC;
    }
    let blocks = rows.div_ceil(MC).next_multiple_of(threads);
    rows.div_ceil(blocks.max(1)).next_multiple_of(GRAIN).max(GRAIN)
}

/// `c = alpha * sums + beta * c` for one row, rounded once.
#[inline(always)]
unsafe fn finish<C: Element>(c: *mut C, sums: *const f32, n: usize, alpha: f32, beta: f32) {
    for j in 0..n {
        let new = alpha * *sums.add(j);
        C::store(c.add(j), if beta == 0.0 { new } else { beta * C::load(c.add(j)) + new });
    }
}

/// `c = beta * c`.
unsafe fn keep<C: Element>(p: Product, c: *mut C, ldc: usize) {
    for i in 0..p.m {
        for j in 0..p.n {
            let at = c.add(i * ldc + j);
            C::store(at, if p.beta == 0.0 { 0.0 } else { p.beta * C::load(at) });
        }
    }
}

/// Few rows against a transposed `b` (a linear layer on one token): packing `b` would cost more than the product.
fn is_skinny(p: Product, b: impl Right) -> bool {
    p.m <= SKINNY_ROWS && b.is_transposed() && p.k <= UNPACKED_ROW
}

/// Dot products along the rows of the stored `b`, four sums a lane group.
#[inline(never)]
unsafe fn skinny<T: Element, C: Element, R: Right<Stored = T>>(
    p: Product,
    a: Matrix<T>,
    b: R,
    c: *mut C,
    ldc: usize,
    columns: Range<usize>,
    unpacked: *mut f32,
) {
    // a row of `a`, widened and gathered, a block at a time would change the order for long rows; they are read in place.
    for j in columns {
        let column = b.part(0, j, p.k, 1, unpacked).data;
        for i in 0..p.m {
            let sum = dot(p.k, a.at(i, 0), a.col, column);
            let at = c.add(i * ldc + j);
            let new = p.alpha * sum;
            C::store(at, if p.beta == 0.0 { new } else { p.beta * C::load(at) + new });
        }
    }
}

#[inline(always)]
unsafe fn dot<T: Element>(k: usize, a: *const T, stride: usize, b: *const T) -> f32 {
    sum_lanes(k, |sum, s, count| {
        let left = gather(a.add(s * stride), stride as isize, count);
        left.madd(load_part(b.add(s), count), sum)
    })
}
