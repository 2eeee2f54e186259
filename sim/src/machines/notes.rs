//! What readers of descriptions found, for the user.

/// What a reader understood and what it assumed, one line each.
pub(super) struct Notes {
    pub understood: Vec<String>,
    pub assumed: Vec<String>,
}
