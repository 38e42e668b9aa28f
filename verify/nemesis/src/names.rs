//! Macro for enums whose variants have names for people.

/// Defines an enum of variants without fields. `ALL` has all variants in order, and `name` returns
/// the name of a variant.
macro_rules! names {
    (
        $(#[$of:meta])*
        $vis:vis enum $enum:ident {
            $($(#[$doc:meta])* $value:ident = $name:literal,)*
        }
    ) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        $vis enum $enum {
            $($(#[$doc])* $value,)*
        }

        #[allow(dead_code, reason = "not every enum is listed")]
        impl $enum {
            $vis const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            $vis fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }
        }
    };
}

pub(crate) use names;
