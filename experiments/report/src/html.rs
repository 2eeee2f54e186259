//! A page as HTML: `template.html`, whose `{{names}}` are replaced by the HTML of the page's parts.

use crate::escape::escape;
use crate::page::{Headline, Page, Plot, Question, ReportTable, Section};

const TEMPLATE: &str = include_str!("template.html");

/// The most commands that are shown; a longer list is folded away.
const SHOWN: usize = 3;

/// Kinds of records that the page leaves out: thousands of lines that no reader of the page needs.
const LEFT_OUT: [&str; 2] = ["verify", "span"];

impl Page<'_> {
    /// The page as one HTML file.
    pub fn html(&self) -> String {
        let lines: Vec<String> = self.records.without(&LEFT_OUT).map(|value| value.to_string()).collect();
        let contents = &self.contents;
        let limits: Vec<&str> = contents.limits.iter().map(String::as_str).chain(ALWAYS).collect();
        fill(
            TEMPLATE,
            &[
                ("style", include_str!("style.css").into()),
                ("answer", escape(&contents.answer)),
                ("machine", each(&contents.machine, |fact| format!("    <li>{}</li>\n", escape(fact)))),
                ("host", escape(&self.stamp.host)),
                ("commit", escape(&self.stamp.commit)),
                ("command", escape(&self.stamp.command)),
                ("links", each(&contents.sections, link)),
                ("cards", each(&Question::ALL, |question| card(*question, &contents.facts))),
                ("sections", each(&contents.sections, section)),
                ("limits", each(&limits, |limit| format!("    <li>{}</li>\n", escape(limit)))),
                ("count", self.records.len().to_string()),
                // `<` is escaped, so that no text in a record can end the script.
                ("records", format!("[{}]", lines.join(",\n")).replace('<', "\\u003c")),
                ("script", include_str!("page.js").into()),
            ],
        )
    }
}

/// Limits of every report.
const ALWAYS: [&str; 2] = [
    "A measurement is of this machine at this time: other programs on it change the numbers.",
    "A prediction is as good as its sources: rates from data sheets, latencies from published measurements.",
];

/// The template with every `{{name}}` replaced by its value; a `{{name}}` within a value is not replaced.
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

/// The HTML of every item, joined.
fn each<T>(items: &[T], html: impl Fn(&T) -> String) -> String {
    items.iter().map(html).collect()
}

/// The card of one question; nothing where no fact answers the question.
fn card(question: Question, facts: &[(Question, Headline)]) -> String {
    let of: Vec<&Headline> = facts.iter().filter(|(of, _)| *of == question).map(|(_, fact)| fact).collect();
    if of.is_empty() {
        return String::new();
    }
    let facts = each(&of, |fact| {
        let class = match fact.ok {
            Some(true) => "good",
            Some(false) => "bad",
            None => "plain",
        };
        let (value, text) = (escape(&fact.value), escape(&fact.text));
        format!("    <li class=\"{class}\"><strong>{value}</strong> <span>{text}</span></li>\n")
    });
    format!("<div class=\"card\">\n  <h2>{}</h2>\n  <ul>\n{facts}  </ul>\n</div>\n", escape(question.title()))
}

fn link(section: &Section) -> String {
    format!("  <a href=\"#{}\">{}</a>\n", section.id, escape(&section.title))
}

fn section(section: &Section) -> String {
    let body = format!(
        "{}{}{}{}",
        each(&section.text, |paragraph| format!("  <p>{}</p>\n", escape(paragraph))),
        plots(&section.plots),
        each(&section.tables, table),
        commands(&section.commands),
    );
    let body = match section.folded {
        true => {
            format!("  <details class=\"part\">\n  <summary>Show this part</summary>\n{body}  </details>\n")
        }
        false => body,
    };
    format!("<section id=\"{}\">\n  <h2>{}</h2>\n{body}</section>\n", section.id, escape(&section.title))
}

/// Plots in order. Neighbouring plots with the same names of choices form a group, of which a script shows one plot at a time.
fn plots(plots: &[Plot]) -> String {
    let names = |plot: &Plot| plot.choices.iter().map(|choice| choice.0).collect::<Vec<_>>();
    let groups = plots.chunk_by(|a, b| names(a) == names(b));
    let groups = groups.map(|group| match group.first() {
        Some(first) if !first.choices.is_empty() => {
            let names = attribute(&names(first));
            format!("  <div class=\"choices\" data-names=\"{names}\">\n{}  </div>\n", each(group, plot))
        }
        _ => each(group, plot),
    });
    groups.collect()
}

/// A list of texts as JSON within a quoted attribute.
fn attribute<T: serde::Serialize>(texts: &[T]) -> String {
    escape(&serde_json::to_string(texts).unwrap_or_default())
}

fn plot(plot: &Plot) -> String {
    let Plot { caption, finding, choices, figure } = plot;
    let entries = figure.legend.iter().enumerate().map(|(place, key)| {
        let (marker, colour, name) = (key.marker, escape(&key.colour), escape(&key.name));
        let series = key.series(place);
        format!(
            "      <li class=\"{marker}\" data-series=\"{series}\" style=\"--key: var(--{colour})\"><i></i>{name}</li>\n"
        )
    });
    let legend: String = entries.collect();
    let values: Vec<&str> = choices.iter().map(|choice| choice.1.as_str()).collect();
    let values =
        if values.is_empty() { String::new() } else { format!(" data-values=\"{}\"", attribute(&values)) };
    let finding = finding
        .as_ref()
        .map_or(String::new(), |finding| format!("    <p class=\"finding\">{}</p>\n", escape(finding)));
    format!(
        "  <figure{values}>\n    <figcaption>{}</figcaption>\n    <ul class=\"legend\">\n{legend}    </ul>\n    {}\n    {}\n{finding}  </figure>\n",
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
    use crate::page::Contents;
    use crate::plots::{Figure, Key};
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
        let key = |marker| Key { name: "k".into(), colour: "s0".into(), marker };
        let legend = ["cpu", "simulated", "ideal"].map(key).to_vec();
        let figure = Figure { wide: "<svg/>".into(), narrow: "<svg/>".into(), legend };
        let plot = Plot::new("p", Some("1 < 2".into()), figure);
        let section = Section {
            id: "one",
            title: title.into(),
            text: vec!["5 < 6".into()],
            plots: vec![plot.clone().among(vec![("size", "\"1\"".into())]), plot],
            tables: vec![table],
            commands: vec!["allfold verify".into(); commands],
            folded: commands > SHOWN,
        };
        let fact = Headline { value: "1".into(), text: "is & stays".into(), ok: Some(false) };
        let records = Records::parse(r#"{"schema":2,"kind":"x","text":"</script><p>"}"#).unwrap();
        let contents = Contents {
            answer: "64 <GPUs>".into(),
            machine: vec!["1 core".into()],
            facts: vec![(Question::Here, fact)],
            sections: vec![section],
            limits: vec!["a & b".into()],
        };
        Page { contents, stamp, records: &records }.html()
    }

    #[test]
    fn plots_with_choices_are_a_group_and_a_card_without_facts_is_left_out() {
        let page = page("one", 1);
        assert!(page.contains(r#"data-names="[&quot;size&quot;]""#), "{page}");
        assert!(page.contains(r#"<figure data-values="[&quot;\&quot;1\&quot;&quot;]">"#), "{page}");
        assert!(page.contains("1 &lt; 2</p>") && page.matches("<figure").count() == 2);
        for series in ["cpu\" data-series=\"0", "simulated\" data-series=\"1", "ideal\" data-series=\"ideal"]
        {
            assert!(page.contains(&format!("<li class=\"{series}\"")), "no {series}");
        }
        assert!(page.contains("How fast is it here?") && !page.contains("Can I trust it?"));
        assert!(page.contains("<h1>64 &lt;GPUs&gt;</h1>") && page.contains("<li>a &amp; b</li>"));
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
            "style", "answer", "machine", "host", "commit", "command", "links", "cards", "sections",
            "limits", "count", "records", "script",
        ];
        assert_eq!(names, known);
    }

    #[test]
    fn many_commands_are_folded_away() {
        assert!(!page("one", 3).contains("3 commands make"));
        assert!(page("one", 4).contains("4 commands make these records again"));
        assert!(
            page("one", 4).contains("<details class=\"part\">")
                && !page("one", 3).contains("<details class=\"part\">")
        );
    }
}
