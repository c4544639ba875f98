//! Working space: an area for lists and a scratch area, and before them, for native libraries, the arguments of a call. In a
//! WASM module it lies right behind the module's data; a native library, which has no data, is given it with each call.
//!
//! There is no allocator. The owner of the memory starts its own heap at [`heap_base`]. One kernel runs at a time on it, so all
//! share one scratch area; nothing in it survives a call.
//!
//! A call's working space also says which threads share its work ([`Workspace::split`]). Only what does not depend on the rest of a
//! call may be cut there, and nothing that is computed may depend on where: so any number of threads gives the same bits.
#[cfg(feature = "native")]
use crate::pool::Pool;
use core::ops::Range;

/// f64 words of the area for arguments.
const ARGUMENT_WORDS: usize = 64;
/// u32 words of the area for lists that are arguments: shapes, strides, source addresses. An element is as wide as an address.
const LIST_WORDS: usize = 4096;
/// f32 words of the scratch area.
pub const SCRATCH_WORDS: usize = 1 << 20;
/// Bytes of a working space.
pub const BYTES: usize = ARGUMENT_WORDS * 8 + (LIST_WORDS + SCRATCH_WORDS) * 4;

/// Which of the words of arguments holds the address of the pool of threads, or 0; see `src/device/native/threads.ts`.
#[cfg(feature = "native")]
const POOL_WORD: usize = ARGUMENT_WORDS - 1;
/// Parts of a call's work for each thread: enough that a thread which is held up leaves little for the others.
#[cfg(feature = "native")]
const PARTS_OF_THREAD: usize = 4;

/// Where it lies, and who shares the work of calls.
#[derive(Clone, Copy)]
pub struct Workspace {
    base: usize,
    #[cfg(feature = "native")]
    pool: *const Pool,
}

impl Workspace {
    /// The working space of this module.
    #[cfg(target_arch = "wasm32")]
    pub fn here() -> Workspace {
        extern "C" {
            static __heap_base: u8;
        }
        Workspace { base: (&raw const __heap_base as usize).next_multiple_of(256) }
    }

    /// The working space of this thread, for tests; never freed.
    #[cfg(not(any(target_arch = "wasm32", feature = "native")))]
    pub fn here() -> Workspace {
        thread_local! {
            static SPACE: usize = Box::leak(vec![0u64; BYTES / 8].into_boxed_slice()).as_mut_ptr() as usize;
        }
        Workspace { base: SPACE.with(|space| *space) }
    }

    /// That which a call is given.
    #[cfg(feature = "native")]
    pub unsafe fn at(arguments: *const f64) -> Workspace {
        Workspace { base: arguments as usize, pool: *arguments.add(POOL_WORD) as usize as *const Pool }
    }

    /// The working space of one thread, which shares nothing.
    #[cfg(feature = "native")]
    pub fn alone(base: usize) -> Workspace {
        Workspace { base, pool: core::ptr::null() }
    }

    /// Runs `f` with each of `pieces`, on threads that share them, each with a working space of its own. A piece shares nothing
    /// further, but a single one does.
    #[cfg(feature = "native")]
    #[inline(always)]
    pub unsafe fn each<F: Fn(usize, Workspace)>(self, pieces: usize, f: F) {
        unsafe fn run<F: Fn(usize, Workspace)>(data: usize, piece: usize, space: Workspace) {
            (*(data as *const F))(piece, space)
        }
        self.share(pieces, run::<F>, &raw const f as usize)
    }

    #[cfg(feature = "native")]
    #[inline(never)]
    unsafe fn share(self, pieces: usize, run: unsafe fn(usize, usize, Workspace), data: usize) {
        if pieces <= 1 || self.pool.is_null() {
            for piece in 0..pieces {
                run(data, piece, self);
            }
            return;
        }
        (*self.pool).share(pieces, Workspace::alone(self.base), run, data);
    }

    /// Runs `f` with parts of `0..count`, on threads that share them, each with a working space of its own; with all of it where
    /// it is too little to be shared. An item is as much work as `width` elements of a sum of two arrays.
    #[cfg(feature = "native")]
    #[inline(always)]
    pub unsafe fn split<F: Fn(Range<usize>, Workspace)>(self, count: usize, width: usize, f: F) {
        let step = self.step(count, width);
        self.each(count.div_ceil(step.max(1)).max(1), |piece, space| {
            let begin = piece * step;
            f(begin..(begin + step).min(count), space)
        })
    }

    /// How many of `count` items are a part.
    #[cfg(feature = "native")]
    #[inline(never)]
    unsafe fn step(self, count: usize, width: usize) -> usize {
        if self.pool.is_null() {
            return count.max(1);
        }
        let least = (*self.pool).least().div_ceil(width.max(1)).max(1);
        let parts = (self.threads() * PARTS_OF_THREAD).max(1);
        count.div_ceil(parts).div_ceil(least).max(1) * least
    }

    /// How many threads share the work.
    #[cfg(feature = "native")]
    pub unsafe fn threads(self) -> usize {
        if self.pool.is_null() {
            1
        } else {
            (*self.pool).threads()
        }
    }

    // Where nothing is shared, the same in one piece.
    #[cfg(not(feature = "native"))]
    #[inline(always)]
    pub unsafe fn each(self, pieces: usize, f: impl Fn(usize, Workspace)) {
        for piece in 0..pieces {
            f(piece, self);
        }
    }
    #[cfg(not(feature = "native"))]
    #[inline(always)]
    pub unsafe fn split(self, count: usize, _width: usize, f: impl Fn(Range<usize>, Workspace)) {
        f(0..count, self)
    }
    #[cfg(not(feature = "native"))]
    #[inline(always)]
    pub unsafe fn threads(self) -> usize {
        1
    }

    /// The scratch area.
    #[inline(always)]
    pub fn scratch(self) -> *mut f32 {
        (lists(self) + LIST_WORDS * 4) as *mut f32
    }
}

/// First address behind the working space.
pub fn heap_base(space: Workspace) -> usize {
    space.base + BYTES
}

/// The area for lists.
pub fn lists(space: Workspace) -> usize {
    space.base + ARGUMENT_WORDS * 8
}

/// Declares a struct of pointers into the scratch area, each to as many words as stand behind its name.
#[macro_export]
macro_rules! scratch_areas {
    ($Areas:ident { $($area:ident: $words:expr,)* }) => {
        const _: () = assert!(0 $(+ $words)* <= $crate::workspace::SCRATCH_WORDS);
        struct $Areas {
            $($area: *mut f32,)*
        }
        impl $Areas {
            fn new(space: $crate::workspace::Workspace) -> $Areas {
                let mut end = 0;
                let mut take = |words: usize| {
                    end += words;
                    space.scratch().wrapping_add(end - words)
                };
                $Areas { $($area: take($words),)* }
            }
        }
    };
}
