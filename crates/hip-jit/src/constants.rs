//! Constants: fields of argument structs that have one value in all launches of a plan, for which its kernels are compiled.
//!
//! Such kernels are shorter: loops of known length, divisions by known numbers, no branches for what the plan lacks. The arguments have
//! the fields too, so that the same source compiled without constants serves every plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write as _;
use std::marker::PhantomData;

use crate::layout::{DevicePointer, DeviceStruct};

/// One field and its value.
#[derive(Clone, PartialEq, Eq)]
pub struct Constant {
    /// As C writes it: `team.size`.
    path: String,
    offset: usize,
    bytes: Vec<u8>,
    literal: String,
}

impl Constant {
    /// Whether the arguments have this value.
    fn holds(&self, arguments: &[u8]) -> bool {
        self.given(arguments) == self.bytes
    }

    fn given<'a>(&self, arguments: &'a [u8]) -> &'a [u8] {
        &arguments[self.offset..][..self.bytes.len()]
    }

    /// The value that arguments have.
    pub(crate) fn value_in<A: DeviceStruct>(&self, arguments: &A) -> String {
        let given = self.given(bytemuck::bytes_of(arguments));
        match given.try_into() {
            Ok(word) => u32::from_ne_bytes(word).to_string(),
            Err(_) => "an address".to_owned(),
        }
    }
}

impl fmt::Debug for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.path, self.literal.trim_end_matches('u'))
    }
}

/// Values of fields of one struct; made by [`constants!`](crate::constants!), given to
/// [`KernelSpec::knowing`](crate::KernelSpec::knowing) for the arguments of a kernel.
pub struct Constants<A> {
    fields: Vec<Constant>,
    of: PhantomData<fn(A)>,
}

impl<A> fmt::Debug for Constants<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.fields).finish()
    }
}

impl<A: DeviceStruct> Constants<A> {
    /// What [`constants!`](crate::constants!) expands to.
    #[doc(hidden)]
    pub fn new(fields: impl IntoIterator<Item = Vec<Constant>>) -> Self {
        Self { fields: fields.into_iter().flatten().collect(), of: PhantomData }
    }

    /// These and others, of other fields.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.fields.extend(others.fields);
        self
    }
}

/// The constants of a spec, by struct.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownStructs(BTreeMap<&'static str, Vec<Constant>>);

impl KnownStructs {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces those of the struct.
    pub(crate) fn insert<A: DeviceStruct>(&mut self, constants: Constants<A>) {
        self.0.insert(A::NAME, constants.fields);
    }

    /// Of one struct.
    pub(crate) fn of(&self, name: &str) -> &[Constant] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Names (`Struct.field`) and values in C.
    pub(crate) fn named(&self) -> impl Iterator<Item = (String, &str)> {
        let fields = self.0.iter().flat_map(|(name, fields)| fields.iter().map(move |field| (name, field)));
        fields.map(|(name, field)| (format!("{name}.{}", field.path), field.literal.as_str()))
    }

    /// What `ANABRANCH_KNOWN` of `anabranch/grid.h` uses, for each argument struct of a unit. A struct without constants is not copied:
    /// arrays in a copy, indexed by a variable, would be in local memory.
    pub(crate) fn defines(&self, unit: &str) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut text = "#define ANABRANCH_CONSTANTS 1\n".to_owned();
        for name in argument_structs(unit) {
            let _ = write!(text, "#define ANABRANCH_KNOWN_{name}(ARGUMENTS, GIVEN)");
            let fields = self.of(name);
            let _ = if fields.is_empty() {
                write!(text, " const ARGUMENTS& known = GIVEN;")
            } else {
                write!(text, " ARGUMENTS known = GIVEN;")
            };
            for field in fields {
                let _ = write!(text, " known.{} = {};", field.path, field.literal);
            }
            text.push('\n');
        }
        text
    }
}

/// The names of the structs that the kernels in a unit's text take ([`Kernel::new`](crate::Kernel::new) has the form).
pub(crate) fn argument_structs(unit: &str) -> BTreeSet<&str> {
    let declarations = unit.split("ANABRANCH_KERNEL(").skip(1);
    declarations.filter_map(|rest| rest.split(',').nth(1)).map(str::trim).collect()
}

/// The first constant that arguments do not have.
pub(crate) fn first_other<'a, A: DeviceStruct>(
    constants: &'a [Constant],
    arguments: &A,
) -> Option<&'a Constant> {
    let bytes = bytemuck::bytes_of(arguments);
    constants.iter().find(|constant| !constant.holds(bytes))
}

/// A type of fields that may be constants, or have fields that may.
pub trait ConstantField: Sized {
    /// What a constant of this type is given as.
    type Value;

    /// The constants of a field of this type at `offset` in its struct.
    fn constants(path: String, offset: usize, value: Self::Value) -> Vec<Constant>;
}

impl ConstantField for u32 {
    type Value = Self;

    fn constants(path: String, offset: usize, value: Self) -> Vec<Constant> {
        vec![Constant { path, offset, bytes: value.to_ne_bytes().to_vec(), literal: format!("{value}u") }]
    }
}

/// The only constant of a pointer: addresses differ between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NullPointer;

impl<T> ConstantField for DevicePointer<T> {
    type Value = NullPointer;

    fn constants(path: String, offset: usize, NullPointer: NullPointer) -> Vec<Constant> {
        let bytes = Self::NULL.address().0.to_ne_bytes().to_vec();
        vec![Constant { path, offset, bytes, literal: "nullptr".to_owned() }]
    }
}

impl<A: DeviceStruct> ConstantField for A {
    type Value = Constants<A>;

    fn constants(path: String, offset: usize, value: Constants<A>) -> Vec<Constant> {
        let within = |inner: Constant| Constant {
            path: format!("{path}.{}", inner.path),
            offset: offset + inner.offset,
            ..inner
        };
        value.fields.into_iter().map(within).collect()
    }
}

/// One field of [`constants!`](crate::constants!); `_of` infers its type.
#[doc(hidden)]
pub fn field<A: DeviceStruct, T: ConstantField>(
    path: &str,
    offset: usize,
    _of: fn(&A) -> T,
    value: T::Value,
) -> Vec<Constant> {
    T::constants(path.to_owned(), offset, value)
}

/// [`Constants`] of a struct: `u32` fields with their values, pointers that are null ([`NullPointer`]), and fields that are structs with
/// constants of their own.
///
/// ```
/// use anabranch_hip_jit::{DevicePointer, NullPointer, constants, device_struct};
///
/// device_struct! {
///     /// A view.
///     pub struct View {
///         /// Its rows.
///         pub rows: u32,
///         /// Bytes of a row.
///         pub row_bytes: u32,
///     }
/// }
/// device_struct! {
///     /// Arguments.
///     pub struct Args {
///         /// A view.
///         pub view: View,
///         /// Scales, or null.
///         pub scales: DevicePointer<f32>,
///     }
/// }
/// let of_plan = constants!(Args { view: constants!(View { row_bytes: 64 }), scales: NullPointer });
/// assert_eq!(format!("{of_plan:?}"), "{view.row_bytes = 64, scales = nullptr}");
/// ```
#[macro_export]
macro_rules! constants {
    ($Args:ty { $($field:ident : $value:expr),* $(,)? }) => {
        $crate::Constants::<$Args>::new([$(
            $crate::constants::field(
                ::core::stringify!($field),
                ::core::mem::offset_of!($Args, $field),
                |args: &$Args| args.$field,
                $value,
            )
        ),*])
    };
}
