//! Values that configurations and reports name by a word each.

/// A word that names no value of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no {what}; allowed are {allowed}")]
pub struct UnknownWord {
    /// The word given.
    pub given: String,
    /// What it should name.
    pub what: &'static str,
    /// The allowed words.
    pub allowed: String,
}

impl UnknownWord {
    /// The value whose name is `text`, of `all` the values of a kind that errors call `what`.
    ///
    /// # Errors
    /// No value has the name.
    pub fn find<T: Copy>(
        text: &str,
        what: &'static str,
        all: &[T],
        name: fn(T) -> &'static str,
    ) -> Result<T, Self> {
        all.iter().copied().find(|one| name(*one) == text).ok_or_else(|| {
            let allowed = all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", ");
            Self { given: text.to_owned(), what, allowed }
        })
    }
}

/// Declares an enum whose values have a word each: `ALL`, the function that gives the word, `Display` and `FromStr`. After the enum's
/// name come the function's and what errors call such a value.
#[macro_export]
macro_rules! word_enum {
    ($(#[$meta:meta])* pub enum $name:ident, $function:ident, $what:literal {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)*
    }) => {
        $(#[$meta])*
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $name {
            /// Every value, in the order in which documents list them.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            /// Its word in configurations and reports.
            pub const fn $function(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.$function())
            }
        }

        impl ::core::str::FromStr for $name {
            type Err = $crate::UnknownWord;

            fn from_str(text: &str) -> ::core::result::Result<Self, $crate::UnknownWord> {
                $crate::UnknownWord::find(text, $what, &Self::ALL, Self::$function)
            }
        }
    };
}
