//! A page as HTML: its parts by the functions below, the rest of it as `template.html` has it.

use crate::escape::escape;
use crate::page::{Headline, Page, ReportTable, Section};
use crate::plots::Figure;

const TEMPLATE: &str = include_str!("template.html");

/// The number of commands that are shown; further ones are folded away.
const SHOWN: usize = 3;

impl Page<'_> {
    /// The page as one HTML file. The proofs of single rank counts, thousands of lines, stay in the file of records;
    /// all other records travel in the page.
    pub fn html(&self) -> String {
        let lines: Vec<String> = self.records.without("verify").map(|value| value.to_string()).collect();
        fill(
            TEMPLATE,
            &[
                ("style", include_str!("style.css").into()),
                ("commit", escape(&self.stamp.commit)),
                ("host", escape(&self.stamp.host)),
                ("command", escape(&self.stamp.command)),
                ("findings", each(&self.findings, finding)),
                ("links", each(&self.sections, link)),
                ("sections", each(&self.sections, section)),
                ("count", self.records.len().to_string()),
                // `<` is escaped, so that no text in a record can end the script.
                ("records", format!("[{}]", lines.join(",\n")).replace('<', "\\u003c")),
                ("script", include_str!("hover.js").into()),
            ],
        )
    }
}

/// The template with every `{{name}}` replaced by its value; what stands in a value is never taken for a name.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    let mut parts = template.split("{{");
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (name, rest) = part.split_once("}}").unwrap_or((part, ""));
        let value = values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        text.push_str(value.unwrap_or_default());
        text.push_str(rest);
    }
    text
}

/// The HTML of every item, one after the other.
fn each<T>(items: &[T], html: impl Fn(&T) -> String) -> String {
    items.iter().map(html).collect()
}

fn finding(finding: &Headline) -> String {
    let class = match finding.ok {
        Some(true) => "good",
        Some(false) => "bad",
        None => "plain",
    };
    let (value, text) = (escape(&finding.value), escape(&finding.text));
    format!("    <li class=\"{class}\"><strong>{value}</strong> <span>{text}</span></li>\n")
}

fn link(section: &Section) -> String {
    format!("    <a href=\"#{}\">{}</a>\n", section.id, escape(&section.title))
}

fn section(section: &Section) -> String {
    format!(
        "<section id=\"{}\">\n  <h2>{}</h2>\n{}{}{}{}</section>\n",
        section.id,
        escape(&section.title),
        each(&section.text, |paragraph| format!("  <p>{}</p>\n", escape(paragraph))),
        each(&section.figures, |(caption, drawn)| figure(caption, drawn)),
        each(&section.tables, table),
        commands(&section.commands),
    )
}

fn figure(caption: &str, figure: &Figure) -> String {
    let legend = each(&figure.legend, |key| {
        let (marker, colour, name) = (key.marker, escape(&key.colour), escape(&key.name));
        format!("      <li class=\"{marker}\" style=\"--key: var(--{colour})\"><i></i>{name}</li>\n")
    });
    format!(
        "  <figure>\n    <figcaption>{}</figcaption>\n    <ul class=\"legend\">\n{legend}    </ul>\n    {}\n    {}\n  </figure>\n",
        escape(caption),
        figure.wide,
        figure.narrow,
    )
}

fn table(table: &ReportTable) -> String {
    let open = if table.collapsed { "" } else { " open" };
    let caption = escape(&table.caption);
    let head = each(&table.head, |cell| format!("<th>{}</th>", escape(cell)));
    let rows = each(&table.rows, |row| {
        let cells = each(row, |cell| format!("<td>{}</td>", escape(cell)));
        format!("        <tr>{cells}</tr>\n")
    });
    format!(
        "  <details{open}>\n    <summary>{caption}</summary>\n    \
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table>\n      \
         <thead><tr>{head}</tr></thead>\n      <tbody>\n{rows}      </tbody>\n    </table></div>\n  </details>\n"
    )
}

fn commands(commands: &[String]) -> String {
    let lines = each(commands, |command| format!("<code>{}</code>", escape(command)));
    match commands.len() {
        0 => String::new(),
        1..=SHOWN => format!("  <pre>{lines}</pre>\n"),
        many => format!(
            "  <details>\n    <summary>{many} commands make these records again</summary>\n    \
             <pre>{lines}</pre>\n  </details>\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Records, Stamp};

    fn page(title: &str, commands: usize) -> String {
        let stamp = Stamp {
            commit: "c0ffee".into(),
            host: "<host>".into(),
            seed: None,
            command: "allfold report --out '{{script}}'".into(),
        };
        let table = ReportTable {
            caption: "a \"table\"".into(),
            head: vec!["a < b".into()],
            rows: vec![vec!["1".into()], vec!["<td>".into()]],
            collapsed: true,
        };
        let section = Section {
            id: "one",
            title: title.into(),
            text: vec!["5 < 6".into()],
            figures: Vec::new(),
            tables: vec![table],
            commands: vec!["allfold verify".into(); commands],
        };
        let finding = Headline { value: "1".into(), text: "is & stays".into(), ok: Some(false) };
        let records = Records::parse(r#"{"schema":2,"kind":"x","text":"</script><p>"}"#).unwrap();
        Page { findings: vec![finding], sections: vec![section], stamp, records: &records }.html()
    }

    #[test]
    fn no_text_of_a_record_becomes_a_tag() {
        let page = page("A <part>", 1);
        for text in ["&lt;host&gt;", "A &lt;part&gt;", "5 &lt; 6", "is &amp; stays", "<td>&lt;td&gt;</td>"] {
            assert!(page.contains(text), "no {text}");
        }
        assert!(page.contains(r#"aria-label="a &quot;table&quot;""#), "{page}");
        assert!(page.contains("\\u003c/script>\\u003cp>"), "records end the script");
        assert!(page.contains("--out '{{script}}'"), "a value is taken for a name of the template");
        assert!(page.contains(r#"<li class="bad">"#) && page.contains("<details>\n    <summary>a "));
    }

    #[test]
    fn the_template_names_every_value_once_and_no_other() {
        let names: Vec<&str> = TEMPLATE
            .split("{{")
            .skip(1)
            .filter_map(|part| part.split_once("}}"))
            .map(|(name, _)| name)
            .collect();
        let known = [
            "style", "commit", "host", "command", "findings", "links", "sections", "count", "records",
            "script",
        ];
        assert_eq!(names, known);
    }

    #[test]
    fn many_commands_are_folded_away() {
        assert!(!page("one", 3).contains("3 commands make"));
        assert!(page("one", 4).contains("4 commands make these records again"));
    }
}
