//! Notices about topics that nobody publishes: often the user mistyped the name.

use crate::exit::NoSuchTopic;
use rgaps::{ClientError, LinksState, Node, RefusalCode, TopicRow};
use rgaps_session::{pattern_matches, similar_name};

/// Most names that a notice lists.
const NAMES_MAX: usize = 10;

/// Prints a notice on standard error if nobody but this process's subscriber is in the topic.
pub fn warn(node: &Node, topic: &str) -> anyhow::Result<()> {
    let topics = node.topics()?;
    let alone = |row: &TopicRow| row.publishers + row.orphans == 0 && row.subscribers <= 1;
    if !topics.iter().any(|row| row.name == topic && !alone(row)) {
        let known = topics
            .iter()
            .filter(|row| row.name != topic && row.publishers + row.orphans > 0);
        let known: Vec<&str> = known.map(|row| row.name.as_str()).collect();
        rgaps_session::print_error(format_args!("rgaps: {}", notice(topic, &known)));
    }
    Ok(())
}

/// Prints a notice on standard error if the pattern matches no topic yet.
pub fn warn_of_pattern(node: &Node, pattern: &str) -> anyhow::Result<()> {
    let mut topics = node.topics()?.into_iter();
    if !topics.any(|row| pattern_matches(pattern, &row.name)) {
        let hint = other_hosts(node)?;
        rgaps_session::print_error(format_args!(
            "rgaps: no topic matches '{pattern}' yet; waiting{hint}"
        ));
    }
    Ok(())
}

/// A hint for the end of an error: which topics of other hosts a pattern finds. Empty where links are off.
pub fn other_hosts(node: &Node) -> anyhow::Result<&'static str> {
    Ok(match node.status()?.links.state {
        LinksState::Off => "",
        _ => "; a pattern finds those topics of other hosts that somebody here reads, and a whole name finds any of them",
    })
}

/// Adds the name that the user probably meant to the daemon's error that it knows no such topic. Other errors stay as they are.
pub fn explain(node: &Node, topic: &str, error: ClientError) -> anyhow::Error {
    let ClientError::Refused(refusal) = &error else {
        return error.into();
    };
    if refusal.code != RefusalCode::NotFound {
        return error.into();
    }
    let rows = node.topics().unwrap_or_default();
    match similar_name(topic, rows.iter().map(|row| row.name.as_str())) {
        Some(meant) => NoSuchTopic(format!("{error}; did you mean '{meant}'?")).into(),
        None => error.into(),
    }
}

fn notice(topic: &str, known: &[&str]) -> String {
    let mut text = format!("no publisher of topic '{topic}' yet; waiting.");
    match known {
        [] => text += " No topic has a publisher yet.",
        _ => {
            let listed: Vec<String> = known
                .iter()
                .take(NAMES_MAX)
                .map(|name| format!("'{name}'"))
                .collect();
            text += &format!(" Known topics: {}", listed.join(", "));
            match known.len().saturating_sub(NAMES_MAX) {
                0 => text += ".",
                more => text += &format!(" and {more} more (rgaps topic list)."),
            }
        }
    }
    if let Some(meant) = similar_name(topic, known.iter().copied()) {
        text += &format!(" Did you mean '{meant}'?");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_and_others_are_not() {
        let text = notice("camera/lefd", &["camera/left", "lidar/points"]);
        assert!(text.ends_with("Did you mean 'camera/left'?"), "{text}");
        assert!(text.contains("'lidar/points'."), "{text}");
        assert!(!notice("imu", &["lidar/points"]).contains("mean"));
        assert!(notice("imu", &[]).contains("No topic has a publisher"));
        let many: Vec<String> = (0..25).map(|at| format!("t{at}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(notice("x", &many).contains("and 15 more"));
    }
}
