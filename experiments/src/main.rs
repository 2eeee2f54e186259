//! The `allfold` command.
fn main() {}
