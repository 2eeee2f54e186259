//! Enums whose values have names.

/// Declares an enum of values with names, as flags, files and records write them. The enum gets `ALL`, `name` and `Display`.
///
/// ```
/// allfold_base::named! {
///     /// How links are wired.
///     pub enum Wiring {
///         /// One switch.
///         Switch = "switch",
///         /// A ring.
///         Ring = "ring",
///     }
/// }
/// assert_eq!(Wiring::ALL.map(Wiring::name), ["switch", "ring"]);
/// assert_eq!(Wiring::Ring.to_string(), "ring");
/// ```
#[macro_export]
macro_rules! named {
    ($(#[$attribute:meta])* $visible:vis enum $enum:ident { $($(#[$of:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        $visible enum $enum { $($(#[$of])* $value,)* }

        impl $enum {
            /// All values, in order.
            pub const ALL: [$enum; [$($name),*].len()] = [$($enum::$value),*];

            /// The name, as flags, files and records write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $($enum::$value => $name,)*
                }
            }
        }

        impl ::std::fmt::Display for $enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
