//! Macros that export kernels, from a WASM module or a native library, and the types of their arguments. `lib.rs` lists the exports.

use core::ops::Range;

/// The address of a byte of memory; 0 for an array that is left out.
pub type Address = usize;
/// A number of elements, or a stride.
pub type Size = usize;
/// 0 or 1.
pub type Switch = u32;
/// An integer below 2^53.
pub type Large = f64;

/// An argument in the form in which callers pass it, to be converted to a kernel's.
pub trait Argument<T> {
    fn value(self) -> T;
}
macro_rules! arguments {
    ($($(<$P:ident>)? $From:ident => $To:ty: |$argument:ident| $value:expr;)*) => { $(
        impl$(<$P>)? Argument<$To> for $From {
            fn value(self) -> $To {
                let $argument = self;
                $value
            }
        }
    )* };
}
arguments! {
    <T> Address => *mut T: |address| address as *mut T;
    <T> Address => *const T: |address| address as *const T;
    Size => usize: |size| size;
    Switch => bool: |switch| switch != 0;
    Large => u64: |large| large as u64;
    u32 => u32: |plain| plain;
    i32 => i32: |plain| plain;
    f32 => f32: |plain| plain;
    f64 => f64: |plain| plain;
}

impl Argument<Range<usize>> for Range<Size> {
    fn value(self) -> Range<usize> {
        self
    }
}

/// Runs `$body` with each `$T` as the element type of the dtype code of that name.
macro_rules! dispatch {
    ([] $body:expr) => { $body };
    ([$T:ident $($rest:ident)*] $body:expr) => { with_float!($T, $T => dispatch!([$($rest)*] $body)) };
}

/// Calls a kernel. Its arguments are the export's, behind the working space where the kernel takes it, or the expressions `$made`.
macro_rules! call {
    ($kernel:expr; $($space:ident)?; $($argument:ident)*;) => { $kernel($($space,)? $($argument.value()),*) };
    ($kernel:expr; ; $($argument:ident)*; $($made:expr),+) => {{
        $(let $argument = $argument.value();)*
        $kernel($($made),+)
    }};
}

/// Runs a call; where it may be cut along `$count`, threads run parts of it. The work of an item is the product of the `$width`.
macro_rules! share {
    ($space:ident; ; $body:expr) => { $body };
    ($space:ident; $count:ident $($width:ident)*; $body:expr) => {
        $space.split($count, 1 $(* $width)*, |$count: Range<usize>, $space: Workspace| $body)
    };
}

/// Reads a call's arguments in order. A native library takes them as f64 words, which hold every number and address.
#[cfg(feature = "native")]
pub struct Words(pub *const f64);
#[cfg(feature = "native")]
impl Words {
    pub unsafe fn next(&mut self) -> f64 {
        let word = *self.0;
        self.0 = self.0.add(1);
        word
    }
}

/// `name<T>(arguments) = kernel[space](made) over count * width` exports a kernel:
/// - `<T>`: storage types; their dtype codes come before the arguments.
/// - `[space]`: the kernel takes the working space before its arguments.
/// - `(made)`: the kernel takes these expressions, instead of the arguments as they are.
/// - `over count * width`: threads may share a call. Each runs a range of `count`, whose items are `width` elements long.
///
/// A function of a WASM module takes the arguments as they are. A function of a native library takes one address: of the working
/// space, where the arguments lie. Runtimes call that one signature fastest.
macro_rules! export {
    ($space:ident: $(
        $name:ident $(<$($T:ident),+>)? ($($argument:ident: $kind:ty),*) $(-> $result:ty)?
            = $($kernel:ident)::+ $([$given:ident])? $(($($made:expr),+))? $(over $count:ident $(* $width:ident)*)?;
    )*) => { $(
        #[cfg(not(feature = "native"))]
        #[no_mangle]
        #[allow(non_snake_case, unused_variables)]
        pub unsafe extern "C" fn $name($($($T: u32,)+)? $($argument: $kind),*) $(-> $result)? {
            let $space = Workspace::here();
            share!($space; $($count $($width)*)?;
                dispatch!([$($($T)+)?] call!($($kernel)::+$(::<$($T),+>)?; $($given)?; $($argument)*; $($($made),+)?)))
        }
        #[cfg(feature = "native")]
        #[no_mangle]
        #[allow(non_snake_case, unused_variables, unused_mut)]
        pub unsafe extern "C" fn $name(arguments: *const f64) $(-> $result)? {
            let $space = Workspace::at(arguments);
            let mut words = Words(arguments);
            $($(let $T = words.next() as u32;)+)?
            $(let $argument = words.next() as $kind;)*
            share!($space; $($count $($width)*)?;
                dispatch!([$($($T)+)?] call!($($kernel)::+$(::<$($T),+>)?; $($given)?; $($argument)*; $($($made),+)?)))
        }
    )* };
}
