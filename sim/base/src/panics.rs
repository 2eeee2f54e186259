//! The text of a panic.

use std::any::Any;

/// The message of a panic that was caught; "no message" if its payload is no text.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
