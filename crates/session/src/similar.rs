//! The known name that a misspelt one probably means, for "did you mean".

/// A known name that is this similar to an unknown one was probably meant (1 is the same text).
const SIMILAR_MIN: f64 = 0.6;

/// The known name that is most similar to `name`, and how similar it is.
fn most_similar<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<(f64, &'a str)> {
    known
        .map(|known| (strsim::normalized_damerau_levenshtein(name, known), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The known name that `name` probably means; none if no known name is similar.
pub fn similar_name<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    most_similar(name, known).and_then(|(similar, known)| (similar >= SIMILAR_MIN).then_some(known))
}

/// The known name that is most similar to `name`, however little.
pub(crate) fn nearest_name<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    most_similar(name, known).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_name_is_found_and_others_are_not() {
        let known = ["camera/left", "lidar/points"];
        let meant = |name| similar_name(name, known.into_iter());
        assert_eq!(meant("camera/lefd"), Some("camera/left"));
        assert_eq!(meant("cam/left"), Some("camera/left"));
        assert_eq!(meant("imu"), None);
        assert_eq!(similar_name("imu", std::iter::empty()), None);
        assert!(nearest_name("imu", known.into_iter()).is_some());
    }
}
