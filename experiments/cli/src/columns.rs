//! Tables of text with aligned columns.

use allfold_report::cells::{Column, cells};

/// A table whose columns are as wide as their longest cell; the first row is the header. Columns of numbers are
/// right-aligned.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let numeric = |c: usize| {
        let mut cells = rows.iter().skip(1).filter_map(|r| r.get(c)).filter(|s| !s.is_empty()).peekable();
        cells.peek().is_some() && cells.all(|s| s.starts_with(|ch: char| ch.is_ascii_digit() || ch == '-'))
    };
    let shape: Vec<(usize, bool)> = (0..count).map(|c| (width(c), numeric(c))).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&shape).map(|(cell, &(width, right))| {
            if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A table of `rows` with these columns, as wide as their longest cell.
pub fn table<T>(rows: impl IntoIterator<Item = T>, table: &[Column<T>]) -> String {
    let (names, rows) = cells(rows, table);
    columns(&[vec![names], rows].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["name".to_string(), "n".into()],
            vec!["a".into(), "10".into()],
            vec!["bcdef".into(), "7".into()],
        ];
        assert_eq!(columns(&rows), "name    n\na      10\nbcdef   7");
    }
}
