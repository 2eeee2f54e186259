//! Allfold.
