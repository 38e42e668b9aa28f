//! Enums whose values have names for people.

/// Defines an enum of values without fields. `ALL` has the values in their order, and `name`
/// returns the name of one.
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
