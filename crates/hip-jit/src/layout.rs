//! One layout for structs that cross to the device: declared once in Rust, checked by the device compiler.

use std::fmt;
use std::marker::PhantomData;

use anabranch_hip::DeviceAddress;
use bytemuck::{Pod, Zeroable};

/// A pointer to device memory inside an argument struct; `T*` in C, a number in Rust.
///
/// Host code never dereferences it.
#[repr(transparent)]
pub struct DevicePointer<T> {
    address: u64,
    pointee: PhantomData<fn() -> T>,
}

impl<T> DevicePointer<T> {
    /// The null pointer.
    pub const NULL: Self = Self { address: 0, pointee: PhantomData };

    /// A pointer to `address`.
    pub const fn new(address: DeviceAddress) -> Self {
        Self { address: address.0, pointee: PhantomData }
    }

    /// The address as a number.
    pub const fn address(self) -> DeviceAddress {
        DeviceAddress(self.address)
    }

    /// Whether it is the null pointer.
    pub const fn is_null(self) -> bool {
        self.address == 0
    }

    /// The same address with another pointee.
    pub const fn cast<U>(self) -> DevicePointer<U> {
        DevicePointer { address: self.address, pointee: PhantomData }
    }
}

impl<T> From<DeviceAddress> for DevicePointer<T> {
    fn from(address: DeviceAddress) -> Self {
        Self::new(address)
    }
}

impl<T> Clone for DevicePointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePointer<T> {}

impl<T> Default for DevicePointer<T> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<T> PartialEq for DevicePointer<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for DevicePointer<T> {}

impl<T> fmt::Debug for DevicePointer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

// SAFETY: a transparent wrapper of u64; all zero bytes are the null pointer.
unsafe impl<T> Zeroable for DevicePointer<T> {}
// SAFETY: transparent over u64 (the marker has no bytes): no padding, every bit pattern valid, Copy, and
// 'static as T is.
unsafe impl<T: 'static> Pod for DevicePointer<T> {}

/// A type that may be a field of a device struct: knows how C declares it. A struct cannot point to itself, as its
/// declaration would have to stand before itself; such a pointer is a `DevicePointer<u8>`.
pub trait DeviceField {
    /// Whether C declares it with brackets after the name.
    const IS_ARRAY: bool = false;

    /// The C declaration of `name` with this type, without the semicolon: `unsigned int name`.
    fn c_declarator(name: &str) -> String;

    /// C text that has to stand before a use of the type; empty for scalars.
    fn c_prerequisite() -> String {
        String::new()
    }
}

macro_rules! scalars {
    ($($type:ty = $c:literal),* $(,)?) => { $(
        impl DeviceField for $type {
            fn c_declarator(name: &str) -> String {
                format!(concat!($c, " {}"), name)
            }
        }
    )* };
}

scalars! {
    u8 = "unsigned char", i8 = "signed char", u16 = "unsigned short", i16 = "short",
    u32 = "unsigned int", i32 = "int", u64 = "unsigned long long", i64 = "long long",
    f32 = "float", f64 = "double",
}

impl<T: DeviceField, const N: usize> DeviceField for [T; N] {
    const IS_ARRAY: bool = true;

    fn c_declarator(name: &str) -> String {
        T::c_declarator(&format!("{name}[{N}]"))
    }

    fn c_prerequisite() -> String {
        T::c_prerequisite()
    }
}

impl<T: DeviceField> DeviceField for DevicePointer<T> {
    fn c_declarator(name: &str) -> String {
        T::c_declarator(&if T::IS_ARRAY { format!("(*{name})") } else { format!("*{name}") })
    }

    fn c_prerequisite() -> String {
        T::c_prerequisite()
    }
}

/// A struct that Rust and the device compiler lay out the same way. Implemented by [`device_struct!`] only.
///
/// [`device_struct!`]: crate::device_struct
pub trait DeviceStruct: Pod {
    /// Its name, in Rust and in C.
    const NAME: &'static str;

    /// The C++ declaration with `static_assert`s on the size and on the offset of every field, after an
    /// include guard and after the declarations of the structs that it uses.
    fn c_declaration() -> String;
}

/// How generated declarations ask for an offset; stands before them in every rendered text. NVRTC up to 13.0 has no
/// `__builtin_offsetof`, but its front end's own form of it.
pub(crate) const OFFSET_OF: &str = "\
#if defined(__CUDACC_RTC__)
#define ANABRANCH_OFFSET_OF(TYPE, FIELD) __INTADDR__(&static_cast<TYPE*>(0)->FIELD)
#else
#define ANABRANCH_OFFSET_OF(TYPE, FIELD) __builtin_offsetof(TYPE, FIELD)
#endif
";

/// One field, as [`device_struct!`](crate::device_struct) describes it to [`declare`]. Both are public because the macro expands to them
/// in other crates.
#[doc(hidden)]
#[derive(Debug)]
pub struct FieldDescription {
    pub name: &'static str,
    pub declarator: String,
    pub prerequisite: String,
    pub offset: usize,
}

/// Writes what [`DeviceStruct::c_declaration`] returns.
#[doc(hidden)]
pub fn declare(name: &str, size: usize, alignment: usize, fields: &[FieldDescription]) -> String {
    use fmt::Write as _;
    let mut text = String::new();
    let mut seen: Vec<&str> = Vec::new();
    for field in fields {
        if !field.prerequisite.is_empty() && !seen.contains(&field.prerequisite.as_str()) {
            seen.push(&field.prerequisite);
            text.push_str(&field.prerequisite);
        }
    }
    let _ = writeln!(
        text,
        "#ifndef ANABRANCH_LAYOUT_{name}\n#define ANABRANCH_LAYOUT_{name} 1\nstruct {name} {{"
    );
    for field in fields {
        let _ = writeln!(text, "    {};", field.declarator);
    }
    let _ = writeln!(text, "}};");
    let _ = writeln!(
        text,
        "static_assert(sizeof({name}) == {size}, \"size of {name} differs between Rust and the device\");\n\
         static_assert(alignof({name}) == {alignment}, \"alignment of {name} differs between Rust and the device\");"
    );
    for field in fields {
        let _ = writeln!(
            text,
            "static_assert(ANABRANCH_OFFSET_OF({name}, {field}) == {offset}, \
             \"offset of {name}::{field} differs between Rust and the device\");",
            field = field.name,
            offset = field.offset,
        );
    }
    let _ = writeln!(text, "#endif");
    text
}

/// Declares a struct that is passed to kernels.
///
/// The struct is `#[repr(C)]`, `Clone`, `Copy`, `Debug`, plain data ([`Pod`]) and a [`DeviceStruct`]; it may be
/// a field of another one. Field types are those that implement [`DeviceField`].
///
/// ```
/// use anabranch_hip_jit::{device_struct, DevicePointer, DeviceStruct};
///
/// device_struct! {
///     /// What the scale kernel is called with.
///     pub struct ScaleArgs {
///         /// `count` values.
///         pub values: DevicePointer<f32>,
///         pub count: u32,
///         pub factor: f32,
///     }
/// }
/// assert!(ScaleArgs::c_declaration().contains("float *values;"));
/// assert!(ScaleArgs::c_declaration().contains("ANABRANCH_OFFSET_OF(ScaleArgs, factor) == 12"));
/// ```
///
/// Padding does not compile; write it as a field:
///
/// ```compile_fail,E0080
/// anabranch_hip_jit::device_struct! {
///     pub struct Padded { pub count: u32, pub address: u64 }
/// }
/// ```
///
/// Neither does a type that is not plain data:
///
/// ```compile_fail,E0277
/// anabranch_hip_jit::device_struct! {
///     pub struct Flagged { pub flag: bool }
/// }
/// ```
#[macro_export]
macro_rules! device_struct {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[$field_meta:meta])* $field_visibility:vis $field:ident : $type:ty ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        $visibility struct $name {
            $( $(#[$field_meta])* $field_visibility $field: $type, )+
        }

        const _: () = {
            const fn fields_are_plain_data<T: $crate::bytemuck::Pod + $crate::DeviceField>() {}
            $( fields_are_plain_data::<$type>(); )+
            assert!(
                ::core::mem::size_of::<$name>() == 0 $( + ::core::mem::size_of::<$type>() )+,
                concat!("device struct ", stringify!($name), " has padding; write it as a field"),
            );
        };

        // SAFETY: every field is Pod, hence Zeroable (checked above).
        unsafe impl $crate::bytemuck::Zeroable for $name {}
        // SAFETY: repr(C), Copy, every field is Pod, and the fields fill the struct (checked above).
        unsafe impl $crate::bytemuck::Pod for $name {}

        impl $crate::DeviceStruct for $name {
            const NAME: &'static str = stringify!($name);

            fn c_declaration() -> ::std::string::String {
                $crate::layout::declare(
                    stringify!($name),
                    ::core::mem::size_of::<$name>(),
                    ::core::mem::align_of::<$name>(),
                    &[ $( $crate::layout::FieldDescription {
                        name: stringify!($field),
                        declarator: <$type as $crate::DeviceField>::c_declarator(stringify!($field)),
                        prerequisite: <$type as $crate::DeviceField>::c_prerequisite(),
                        offset: ::core::mem::offset_of!($name, $field),
                    }, )+ ],
                )
            }
        }

        impl $crate::DeviceField for $name {
            fn c_declarator(name: &str) -> ::std::string::String {
                ::std::format!(concat!(stringify!($name), " {}"), name)
            }

            fn c_prerequisite() -> ::std::string::String {
                <$name as $crate::DeviceStruct>::c_declaration()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    device_struct! {
        /// Nested.
        struct Inner {
            first: u32,
            second: [i16; 2],
        }
    }

    device_struct! {
        struct Outer {
            pointer: DevicePointer<Inner>,
            rows: DevicePointer<[f32; 4]>,
            pointers: [DevicePointer<u8>; 2],
            inner: [Inner; 2],
            small: u8,
            reserved: [u8; 7],
        }
    }

    #[test]
    fn the_c_text_declares_what_rust_declares() {
        let text = Outer::c_declaration();
        for line in [
            "struct Inner {\n    unsigned int first;\n    short second[2];\n};",
            "    Inner *pointer;",
            "    float (*rows)[4];",
            "    unsigned char *pointers[2];",
            "    Inner inner[2];",
            "static_assert(sizeof(Outer) == 56,",
            "static_assert(ANABRANCH_OFFSET_OF(Outer, inner) == 32,",
        ] {
            assert!(text.contains(line), "{line}\n--\n{text}");
        }
        assert_eq!(text.matches("struct Inner {").count(), 1);
        assert_eq!(Outer::NAME, "Outer");
        let zero = Outer::zeroed();
        assert!(zero.pointer.is_null() && bytemuck::bytes_of(&zero).iter().all(|byte| *byte == 0));
    }
}
