//! Formats an error and its causes as one line.

use std::error::Error;

/// The text of an error and of its causes. Omits a cause that the text contains already, since many of our errors quote theirs.
pub fn explain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfigError;

    #[derive(Debug, thiserror::Error)]
    #[error("no figures")]
    struct Outer(#[source] ConfigError);

    #[test]
    fn a_cause_is_told_once() {
        let source = std::io::Error::from_raw_os_error(13);
        let path = "/x".into();
        let text = explain(&Outer(ConfigError::Read { path, source }));
        assert!(
            text.starts_with("no figures: the configuration '/x'"),
            "{text}"
        );
        assert_eq!(text.matches("os error 13").count(), 1, "{text}");
    }
}
