//! Escapes text for HTML and SVG.

/// Escapes text for use between tags or within a quoted attribute, so that no part of it is a tag or ends the attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_a_tag_or_ends_an_attribute() {
        assert_eq!(escape("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
        assert_eq!(escape("&lt;"), "&amp;lt;", "what looks escaped is text as well");
    }
}
