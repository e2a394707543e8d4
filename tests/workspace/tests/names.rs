//! Names say what is meant, in the field's words: none has a word that docs/decisions/0038-house-names.md bans. Unit tests are named
//! by sentences and not looked at.

#![forbid(unsafe_code)]

use rgaps_workspace_tests::{root, Workspace};
use std::path::Path;

const BANNED: &str = "carry came come early elsewhere former going gone greeting greetings hear hears heard letter letting liar lie \
    lies meeting met news notes ours passed passing place places said says tell tells theirs told way ways";

/// Phrases that the glossary replaces, and by what. Words that also have a plain sense, such as "place", are left to readers.
const PHRASES: [(&str, &str); 6] = [
    ("letting go", "a deferred release"),
    ("held up by", "back-pressured"),
    ("come there", "reach"),
    ("told as aborted", "aborted"),
    ("goes once more", "is sent again"),
    ("### Mended", "### Fixed"),
];

/// Words behind which a name is defined.
const DEFINING: &str = "mod struct enum union trait type fn const static";

/// The words of a name, split at underscores and capitals.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for letter in name.chars() {
        if before == '_' || (letter.is_uppercase() && !before.is_uppercase()) {
            words.push(String::new());
        }
        if let (Some(word), true) = (words.last_mut(), letter != '_') {
            word.extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

fn is_banned(name: &str) -> bool {
    let words = words(name);
    BANNED
        .split_whitespace()
        .any(|banned| words.iter().any(|word| word == banned))
}

/// The name that a line defines: an item's, a field's or a variant's.
fn defined(line: &str) -> Option<&str> {
    let line = line.split("//").next()?.trim();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut before = "";
    for word in line
        .split(|c: char| !is_name(c))
        .filter(|word| !word.is_empty())
    {
        if DEFINING.split(' ').any(|defining| defining == before) && word != "fn" {
            return Some(word);
        }
        before = word;
    }
    let line = line
        .strip_prefix("pub ")
        .or(line.strip_prefix("pub(crate) "))
        .or(line.strip_prefix("pub(super) "))
        .unwrap_or(line);
    let end = line.find(|c| !is_name(c)).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let is_field = rest.starts_with(": ") && rest.ends_with(',');
    let is_variant = name.starts_with(char::is_uppercase)
        && (rest == "," || rest == " {" || rest.starts_with('('));
    (is_field || is_variant).then_some(name)
}

/// Appends the names with a banned word that the files in a folder and below define.
fn find_banned(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a crate has sources") {
        let path = entry.expect("the folder can be read").path();
        let stem = path.file_stem().expect("it has a name").to_string_lossy();
        if is_banned(&stem) {
            found.push(path.display().to_string());
        }
        if path.is_dir() {
            find_banned(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !stem.ends_with("tests")
        {
            let source = std::fs::read_to_string(&path).expect("sources are text");
            let shipped = source
                .split("#[cfg(test)]\nmod tests {")
                .flat_map(|part| part.split("#[cfg(all(test, not(loom)))]\nmod tests {"))
                .next()
                .unwrap_or_default();
            let names = (1..)
                .zip(shipped.lines())
                .filter_map(|(number, line)| Some((number, defined(line)?)));
            let banned = names.filter(|(_, name)| is_banned(name));
            found.extend(
                banned.map(|(number, name)| format!("{}:{number}: {name}", path.display())),
            );
        }
    }
}

#[test]
fn no_name_has_a_banned_word() {
    let mut found = Vec::new();
    for (name, _) in Workspace::load().crates() {
        find_banned(&root().join("crates").join(name).join("src"), &mut found);
    }
    assert!(found.is_empty(), "rename these:\n{}", found.join("\n"));
}

/// Appends the lines of texts in a folder and below, or of a text, that have one of the phrases.
fn find_phrases(path: &Path, found: &mut Vec<String>) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("a folder has entries");
        for entry in entries {
            let entry = entry.expect("the folder can be read").path();
            // Decisions keep the words of their time.
            if !entry.ends_with("docs/decisions") {
                find_phrases(&entry, found);
            }
        }
    } else if path.extension().is_some_and(|of| of == "rs" || of == "md") {
        let text = std::fs::read_to_string(path).expect("sources are text");
        for (number, line) in (1..).zip(text.lines()) {
            let phrases = PHRASES.iter().filter(|(phrase, _)| line.contains(phrase));
            found.extend(phrases.map(|(phrase, better)| {
                format!("{}:{number}: '{phrase}': {better}", path.display())
            }));
        }
    }
}

#[test]
fn no_text_has_a_phrase_that_the_glossary_replaces() {
    let mut found = Vec::new();
    for text in [
        "crates",
        "docs",
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    ] {
        find_phrases(&root().join(text), &mut found);
    }
    assert!(
        found.is_empty(),
        "write these otherwise:\n{}",
        found.join("\n")
    );
}

#[test]
fn names_are_found_and_split() {
    assert_eq!(
        words("TooEarly_NOW_hostGone"),
        ["too", "early", "now", "host", "gone"]
    );
    let lines = [
        "pub(crate) const fn told(",
        "    pub early: u64,",
        "    Gone(u32),",
        "    Lie {",
        "mod place;",
        "// pub gone: u8,",
        "let way = 1;",
    ];
    let names: Vec<_> = lines.into_iter().filter_map(defined).collect();
    assert_eq!(names, ["told", "early", "Gone", "Lie", "place"]);
}
