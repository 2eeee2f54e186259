//! How a name from a file appears in a message.

/// A name from a file as one word of a message: without line breaks, and not longer than 80 characters.
pub fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    if name.chars().nth(80).is_some() {
        shown.push_str("..");
    }
    shown
}
