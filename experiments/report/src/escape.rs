//! Escapes text for HTML and SVG.

/// Escapes text for use between tags or within a quoted attribute, so that no part of it is a tag or ends the attribute.
pub fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    within_xml(&text)
}

/// Replaces characters that XML does not have, such as controls, by U+FFFD.
pub fn within_xml(text: &str) -> String {
    let foreign = |c: char| c.is_control() && !"\t\n\r".contains(c) || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.replace(foreign, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_a_tag_or_ends_an_attribute() {
        assert_eq!(escape("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
        assert_eq!(escape("a\u{1b}[2J\u{0}\tb\u{ffff}"), "a\u{fffd}[2J\u{fffd}\tb\u{fffd}");
        assert_eq!(escape("&lt;"), "&amp;lt;", "what looks escaped is text as well");
    }
}
