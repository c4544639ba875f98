//! Working space: a parameter area and a scratch area, placed right behind the module's data.
//!
//! There is no allocator. Whoever holds the memory starts its own heap at [`heap_base`]. One kernel runs at a time,
//! so all share one scratch area; nothing in it survives a call.

/// u32 words of the parameter area: shapes, strides, source addresses.
pub const PARAMETER_WORDS: usize = 4096;
/// f32 words of the scratch area.
pub const SCRATCH_WORDS: usize = 1 << 20;
const BYTES: usize = (PARAMETER_WORDS + SCRATCH_WORDS) * 4;

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

/// The parameter area.
#[inline(always)]
pub fn parameters() -> *mut u32 {
    base() as *mut u32
}

/// The scratch area.
#[inline(always)]
pub fn scratch() -> *mut f32 {
    (base() + PARAMETER_WORDS * 4) as *mut f32
}
