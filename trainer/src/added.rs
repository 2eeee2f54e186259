//! The rows that a program adds to one of the tables of names: models, optimisers, hooks, strategies or datasets.

use crate::{Error, Result};
use allfold_kernels::nn::Float;
use std::any::Any;
use std::sync::OnceLock;

/// A row of a table.
pub(crate) trait Named {
    /// The name by which a configuration selects the part.
    fn name(&self) -> &'static str;
}

/// The names of one kind of part: a table of (name, description), and the rows that a program added.
pub(crate) struct Added<T: 'static> {
    /// The kind of part that the table lists, such as `model`.
    kind: &'static str,
    table: &'static [(&'static str, &'static str)],
    rows: OnceLock<&'static [T]>,
}

impl<T: Named> Added<T> {
    /// A table without added rows.
    pub const fn to(kind: &'static str, table: &'static [(&'static str, &'static str)]) -> Added<T> {
        Added { kind, table, rows: OnceLock::new() }
    }

    /// Refuses rows with a name that the table or another row has.
    ///
    /// # Errors
    /// If there is such a name, which the message gives.
    pub fn check(&self, rows: &[T]) -> Result<()> {
        let mut taken: Vec<&str> = self.table.iter().map(|(name, _)| *name).collect();
        for name in rows.iter().map(T::name) {
            if taken.contains(&name) {
                let kind = self.kind;
                return Err(Error::Config(format!(
                    "there is a {kind} `{name}` already; give yours another name"
                )));
            }
            taken.push(name);
        }
        Ok(())
    }

    /// Adds rows that were checked.
    ///
    /// # Errors
    /// If rows were added before.
    pub fn add(&self, rows: &'static [T]) -> Result<()> {
        let second = |_| Error::Config("own parts were added before; add all of them by one call".into());
        self.rows.set(rows).map_err(second)
    }

    /// The added row of this name.
    pub fn find(&self, name: &str) -> Option<&'static T> {
        self.rows.get()?.iter().find(|row| row.name() == name)
    }

    /// All names: those of the table, followed by those that were added.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + Clone + use<T> {
        let added = self.rows.get().copied().unwrap_or_default();
        self.table.iter().map(|(name, _)| *name).chain(added.iter().map(T::name))
    }
}

/// Of the two functions that build a part, for f32 and for f64, the one that has the type `T`.
pub(crate) fn typed<T: Any + Copy>(f32: &dyn Any, f64: &dyn Any) -> Option<T> {
    f32.downcast_ref::<T>().or_else(|| f64.downcast_ref::<T>()).copied()
}

/// The error for a type that is neither f32 nor f64.
pub(crate) fn no_such_type<F: Float>() -> Error {
    Error::Config(format!("networks compute in f32 or f64, not in {}", F::DTYPE))
}
