//! Working space: an area for lists and a scratch area, placed right behind the module's data.
//!
//! There is no allocator. Whoever holds the memory starts its own heap at [`heap_base`]. One kernel runs at a time,
//! so all share one scratch area; nothing in it survives a call.

/// u32 words of the area for lists that are arguments: shapes, strides, source addresses.
pub const LIST_WORDS: usize = 4096;
/// f32 words of the scratch area.
pub const SCRATCH_WORDS: usize = 1 << 20;
const BYTES: usize = (LIST_WORDS + SCRATCH_WORDS) * 4;

#[cfg(target_arch = "wasm32")]
fn base() -> usize {
    extern "C" {
        static __heap_base: u8;
    }
    (&raw const __heap_base as usize).next_multiple_of(256)
}

#[cfg(not(target_arch = "wasm32"))]
fn base() -> usize {
    // A test thread each has its own, never given back.
    thread_local! {
        static SPACE: usize = Box::leak(vec![0u64; BYTES / 8].into_boxed_slice()).as_mut_ptr() as usize;
    }
    SPACE.with(|space| *space)
}

/// First address behind the working space.
pub fn heap_base() -> usize {
    base() + BYTES
}

/// The area for lists.
pub fn lists() -> usize {
    base()
}

/// The scratch area.
#[inline(always)]
pub fn scratch() -> *mut f32 {
    (base() + LIST_WORDS * 4) as *mut f32
}

/// Declares a struct of pointers into the scratch area, each to as many words as stand behind its name.
#[macro_export]
macro_rules! scratch_areas {
    ($Areas:ident { $($area:ident: $words:expr,)* }) => {
        struct $Areas {
            $($area: *mut f32,)*
        }
        impl $Areas {
            fn new() -> $Areas {
                let mut end = 0;
                let mut take = |words: usize| {
                    end += words;
                    $crate::workspace::scratch().wrapping_add(end - words)
                };
                $Areas { $($area: take($words),)* }
            }
        }
    };
}
