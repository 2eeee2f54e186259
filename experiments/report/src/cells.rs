//! Tables whose columns are a name and a function of a row.

/// A column of a table: its name, and the cell of a row.
pub type Column<T> = (&'static str, fn(&T) -> String);

/// The names of the columns, and the cells of every row.
pub fn cells<T>(rows: impl IntoIterator<Item = T>, columns: &[Column<T>]) -> (Vec<String>, Vec<Vec<String>>) {
    let names = columns.iter().map(|(name, _)| name.to_string());
    let row = |row: T| columns.iter().map(|(_, cell)| cell(&row)).collect();
    (names.collect(), rows.into_iter().map(row).collect())
}
