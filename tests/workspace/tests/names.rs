//! Names say what is meant, in the field's words: none has a word that docs/decisions/0038-house-names.md bans. Unit tests are named
//! by sentences and not looked at.

#![forbid(unsafe_code)]

use rgaps_workspace_tests::{root, Package, Workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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

/// Names that say nothing alone.
const VAGUE: [&str; 5] = ["State", "Kind", "Plan", "Report", "Inner"];

/// Packages that no other crate uses for its types: their types' names are compared with nobody's.
const PROGRAMS: [&str; 6] = [
    "rgaps-bench",
    "rgaps-bridge",
    "rgaps-cli",
    "rgaps-compare",
    "rgaps-view",
    "rgapsd",
];

/// Names of public types that two libraries share, since both mean the same thing: what users see of it and how it is built, or the same
/// thing as two layers know it.
const SHARED: [&str; 11] = [
    "Access",
    "Device",
    "Direction",
    "Loan",
    "LoanError",
    "Message",
    "PublishError",
    "Publisher",
    "Subscriber",
    "Tensor",
    "Tree",
];

const TYPES: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

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

/// Calls `look` with each source file of a crate, and with each of its lines but those of unit tests, which have numbers from 1 on.
fn look_at(folder: &Path, look: &mut impl FnMut(&Path, Option<(usize, &str)>)) {
    for entry in std::fs::read_dir(folder).expect("a crate has sources") {
        let path = entry.expect("the folder can be read").path();
        look(&path, None);
        if path.is_dir() {
            look_at(&path, look);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !stem(&path).ends_with("tests")
        {
            let source = std::fs::read_to_string(&path).expect("sources are text");
            let shipped = source
                .split("#[cfg(test)]\nmod tests {")
                .flat_map(|part| part.split("#[cfg(all(test, not(loom)))]\nmod tests {"))
                .next()
                .unwrap_or_default();
            (1..)
                .zip(shipped.lines())
                .for_each(|line| look(&path, Some(line)));
        }
    }
}

fn stem(path: &Path) -> String {
    let stem = path.file_stem().expect("it has a name");
    stem.to_string_lossy().into_owned()
}

fn sources(name: &str) -> PathBuf {
    root().join("crates").join(name).join("src")
}

#[test]
fn no_name_has_a_banned_word() {
    let mut found = Vec::new();
    for (name, _) in Workspace::load().crates() {
        look_at(&sources(&name), &mut |path, line| match line {
            None if is_banned(&stem(path)) => found.push(path.display().to_string()),
            Some((number, line)) => {
                let banned = defined(line).filter(|name| is_banned(name));
                found.extend(banned.map(|name| format!("{}:{number}: {name}", path.display())));
            }
            None => {}
        });
    }
    assert!(found.is_empty(), "rename these:\n{}", found.join("\n"));
}

/// The public type that a line defines.
fn public_type(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("pub ")?;
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let (kind, rest) = line.split_once(' ')?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    TYPES
        .contains(&kind)
        .then(|| &rest[..end.unwrap_or(rest.len())])
}

/// The public types of each crate, and where each is.
fn public_types(workspace: &Workspace) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for (name, package) in workspace.crates() {
        let types: &mut BTreeMap<_, _> = all.entry(package.name.clone()).or_default();
        look_at(&sources(&name), &mut |path, line| {
            if let Some((number, Some(name))) = line.map(|(at, line)| (at, public_type(line))) {
                types.insert(name.to_owned(), format!("{}:{number}", path.display()));
            }
        });
    }
    all
}

#[test]
fn a_public_type_says_of_what_it_is_the_kind_or_state() {
    let workspace = Workspace::load();
    let types = public_types(&workspace).into_values().flatten();
    let vague = types.filter(|(name, _)| VAGUE.contains(&&name[..]));
    let vague: Vec<String> = vague.map(|(name, at)| format!("{at}: {name}")).collect();
    assert!(
        vague.is_empty(),
        "say in the name of what:\n{}",
        vague.join("\n")
    );
}

#[test]
fn a_public_name_has_one_meaning_in_a_library_and_those_that_it_depends_on() {
    let workspace = Workspace::load();
    let types = public_types(&workspace);
    let is_library = |package: &&Package| !PROGRAMS.contains(&&package.name[..]);
    let crates = workspace.crates().into_iter().map(|(_, package)| package);
    let mut found = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for package in crates.filter(is_library) {
        for below in workspace.closure(package).into_iter().filter(is_library) {
            let Some(others) = types.get(&below.name).filter(|_| below.id != package.id) else {
                continue;
            };
            for (name, at) in &types[&package.name] {
                // Macros define names that are not there.
                let Some(other) = others.get(name).filter(|_| !name.is_empty()) else {
                    continue;
                };
                if !SHARED.contains(&&name[..]) {
                    found.insert(format!("{name}: {at} and {other}"));
                }
                shared.insert(&name[..]);
            }
        }
    }
    let found: Vec<String> = found.into_iter().collect();
    assert!(
        found.is_empty(),
        "rename one of each two, or put the name on the list if both mean the same:\n{}",
        found.join("\n")
    );
    let unused: Vec<_> = SHARED
        .iter()
        .filter(|name| !shared.contains(*name))
        .collect();
    assert!(unused.is_empty(), "take these off the list: {unused:?}");
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
    assert_eq!(
        public_type("    pub unsafe trait Memory: Send {"),
        Some("Memory")
    );
    assert_eq!(public_type("pub struct Flow<'a>(u8);"), Some("Flow"));
    assert_eq!(public_type("pub(crate) struct Flow;"), None);
}
