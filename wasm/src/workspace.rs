//! Working space: an area for lists and a scratch area, and before them, for native libraries, the arguments of a call. In a
//! WASM module it lies right behind the module's data; a native library, which has no data, is given it with each call.
//!
//! There is no allocator. Whoever holds the memory starts its own heap at [`heap_base`]. One kernel runs at a time on it, so all
//! share one scratch area; nothing in it survives a call.

/// f64 words of the area for arguments.
const ARGUMENT_WORDS: usize = 64;
/// u32 words of the area for lists that are arguments: shapes, strides, source addresses.
const LIST_WORDS: usize = 4096;
/// f32 words of the scratch area.
pub const SCRATCH_WORDS: usize = 1 << 20;
const BYTES: usize = ARGUMENT_WORDS * 8 + (LIST_WORDS + SCRATCH_WORDS) * 4;

/// Where it lies.
#[derive(Clone, Copy)]
pub struct Workspace(usize);

impl Workspace {
    /// That of this module.
    #[cfg(target_arch = "wasm32")]
    pub fn here() -> Workspace {
        extern "C" {
            static __heap_base: u8;
        }
        Workspace((&raw const __heap_base as usize).next_multiple_of(256))
    }

    /// That of this thread, for tests; never given back.
    #[cfg(not(any(target_arch = "wasm32", feature = "native")))]
    pub fn here() -> Workspace {
        thread_local! {
            static SPACE: usize = Box::leak(vec![0u64; BYTES / 8].into_boxed_slice()).as_mut_ptr() as usize;
        }
        Workspace(SPACE.with(|space| *space))
    }

    /// That which a call is given.
    #[cfg(feature = "native")]
    pub fn at(arguments: *const f64) -> Workspace {
        Workspace(arguments as usize)
    }

    /// The scratch area.
    #[inline(always)]
    pub fn scratch(self) -> *mut f32 {
        (lists(self) + LIST_WORDS * 4) as *mut f32
    }
}

/// First address behind the working space.
pub fn heap_base(space: Workspace) -> usize {
    space.0 + BYTES
}

/// The area for lists.
pub fn lists(space: Workspace) -> usize {
    space.0 + ARGUMENT_WORDS * 8
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
