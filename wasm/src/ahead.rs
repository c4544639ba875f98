//! What is fetched into the caches while tiles are computed: the places of their sums, and what is packed next.
//!
//! A processor has few places for lines under way. Fetches all at once would fill them, and what a tile reads would wait; so
//! they are spread over its steps.
use crate::pack::LINE;
use crate::simd::{prefetch, prefetch_near};
use crate::tile::{MR, NR, UNROLLED};

/// Lines of a part of a matrix, in runs of neighbors.
#[derive(Clone, Copy)]
pub struct Lines {
    data: *const u8,
    /// Bytes from one run to the next, lines of a run, and how many runs.
    stride: usize,
    lines: usize,
    runs: usize,
    /// Where the next line is.
    run: usize,
    line: usize,
    /// Lines that a tile fetches, and how many of them at once.
    of_tile: usize,
    together: usize,
}

impl Lines {
    const BYTES: usize = LINE * size_of::<f32>();

    /// The cache lines of `runs` rows of `count` elements, which may lie outside the matrix.
    #[inline(always)]
    pub fn new<T>(data: *const T, stride: usize, runs: usize, count: usize) -> Lines {
        let bytes = size_of::<T>();
        let lines = (count * bytes).div_ceil(Self::BYTES);
        Lines { data: data.cast(), stride: stride * bytes, lines, runs, run: 0, line: 0, of_tile: 0, together: 1 }
    }

    /// Of all runs as much as `count` items from `begin` on are of all of `of`.
    #[inline(always)]
    pub fn part(self, begin: usize, count: usize, of: usize) -> Lines {
        Lines { run: self.runs * begin / of, runs: self.runs * (begin + count) / of, ..self }
    }

    /// The same, shared by a number of tiles of `depth` words.
    #[inline(always)]
    pub fn over(self, tiles: usize, depth: usize) -> Lines {
        let of_tile = ((self.runs - self.run) * self.lines).div_ceil(tiles.max(1));
        Lines { of_tile, together: of_tile.div_ceil((depth / UNROLLED).max(1)).max(1), ..self }
    }

    /// Fetches some lines, unless a tile has fetched its own with that many calls before.
    #[inline(always)]
    fn fetch(&mut self, calls: usize, prefetch: impl Fn(*const u8)) {
        if calls * self.together >= self.of_tile {
            return;
        }
        for _ in 0..self.together {
            if self.run == self.runs {
                return;
            }
            prefetch(self.data.wrapping_add(self.run * self.stride + self.line * Self::BYTES));
            self.line += 1;
            if self.line == self.lines {
                (self.line, self.run) = (0, self.run + 1);
            }
        }
    }
}

/// What a tile fetches while it is computed.
pub trait Fetch {
    /// Fetches some lines; a tile calls it every [`UNROLLED`] steps, with how often it has.
    fn fetch(&mut self, calls: usize);
}

/// Nothing: all that a tile needs is near.
pub struct Nothing;

impl Fetch for Nothing {
    #[inline(always)]
    fn fetch(&mut self, _calls: usize) {}
}

/// What the tiles of a block of a product fetch.
pub struct Ahead {
    sums: Lines,
    operands: [Lines; 2],
}

impl Ahead {
    /// The places of sums, with `ldc` elements from a row to the next, and lines of both operands that are packed next, by so
    /// many tiles of `depth` words.
    #[inline(always)]
    pub fn new(ldc: usize, operands: [Lines; 2], tiles: usize, depth: usize) -> Ahead {
        let sums = Lines::new(core::ptr::null::<f32>(), ldc, MR, NR).over(1, depth);
        Ahead { sums, operands: operands.map(|lines| lines.over(tiles, depth)) }
    }

    /// Goes on with the tile whose sums lie at `c`.
    #[inline(always)]
    pub fn begin_tile(&mut self, c: *const f32) {
        self.sums = Lines { data: c.cast(), run: 0, line: 0, ..self.sums };
    }
}

impl Fetch for Ahead {
    #[inline(always)]
    fn fetch(&mut self, calls: usize) {
        if cfg!(target_arch = "wasm32") {
            return; // there is no instruction for it
        }
        self.sums.fetch(calls, prefetch);
        for lines in &mut self.operands {
            lines.fetch(calls, prefetch_near);
        }
    }
}
