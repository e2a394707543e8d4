//! The definitions of common types, as text, which other programs need to read CDR. `definitions.txt` has those of ROS 2 Jazzy, as
//! the Python library rosbags prints them.

use std::collections::BTreeSet;

const DEFINITIONS: &str = include_str!("definitions.txt");

/// The definition of a type as MCAP's schemas of encoding `ros2msg` have it: the fields of the type, then those of each type that it
/// contains, behind a line of `=`. None: rgaps does not know the type.
pub fn definition(name: &str) -> Option<String> {
    let mut text = format!("{}\n", own(name)?);
    let (mut seen, mut from) = (BTreeSet::from([short(name)]), 0);
    // The loop appends the types that the lines name, and then reads those lines, too.
    while let Some(end) = text[from..].find('\n') {
        let line = text[from..from + end].to_owned();
        from += end + 1;
        let word = line.split([' ', '[']).next().unwrap_or_default();
        if word.contains('/') && seen.insert(word.to_owned()) {
            let rule = "=".repeat(80);
            text += &format!("{rule}\nMSG: {word}\n{}\n", own(word)?);
        }
    }
    Some(text)
}

/// The name of a type in definitions: `package/Name`.
fn short(name: &str) -> String {
    name.replace("/msg/", "/")
}

/// The fields of one type, without those of the types that it contains.
fn own(name: &str) -> Option<&'static str> {
    let name = short(name);
    let mut types = DEFINITIONS.split("MSG: ");
    let found = types.find_map(|text| text.strip_prefix(name.as_str())?.strip_prefix('\n'))?;
    Some(found.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TYPES;

    #[test]
    fn each_type_has_its_definition_and_those_of_its_types() {
        for known in TYPES {
            assert!(definition(known.name).is_some(), "{}", known.name);
        }
        let rule = "=".repeat(80);
        let wanted = format!(
            "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular\n{rule}\n\
             MSG: geometry_msgs/Vector3\nfloat64 x\nfloat64 y\nfloat64 z\n"
        );
        assert_eq!(definition("geometry_msgs/msg/Twist"), Some(wanted));
        let transforms = definition("tf2_msgs/msg/TFMessage").unwrap();
        for line in ["string frame_id", "uint32 nanosec", "float64 w"] {
            assert!(transforms.contains(&format!("\n{line}\n")), "{transforms}");
        }
        assert_eq!(definition("my_msgs/msg/Mine"), None);
    }
}
