//! Modules of a crate depend on each other in one direction only.
//!
//! The test reads the sources as text. A module depends on another where it names a path that begins with `crate`, `self` or `super` and
//! leads there, also through a name that a `pub use` of the parent passes on. Modules are compared with their siblings: a
//! child is a part of its parent, so what a child uses its parent uses. Unit tests do not count.
#![forbid(unsafe_code)]

use rgaps_workspace_tests::{Package, Workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Crates that still have cycles. The test says which of them no longer belong here.
const MAY_HAVE_CYCLES: [&str; 9] = [
    "bench", "capi", "cli", "client", "cuda", "python", "session", "topic", "verbs",
];

/// A module's path from the root of its crate; the root's is empty.
type Module = Vec<String>;

/// The text without comments, and without what follows the first module of unit tests.
fn code(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut is_test = false;
    for line in source.lines() {
        if line.starts_with("#[cfg(test)]") {
            is_test = true;
        } else if is_test && line.starts_with("mod ") {
            break;
        } else if !line.starts_with('#') {
            is_test = false;
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// The modules of a crate, and their code.
fn modules(folder: &Path, of: &[String], found: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(folder).expect("a module has a folder") {
        let path = entry.expect("the folder can be read").path();
        let name = path.file_stem().expect("it has a name").to_string_lossy();
        let mut module = of.to_vec();
        if path.is_dir() {
            module.push(name.into_owned());
            modules(&path, &module, found);
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "rs") || name.ends_with("tests") {
            continue;
        }
        if !["lib", "main", "mod"].contains(&&*name) {
            module.push(name.into_owned());
        }
        let source = std::fs::read_to_string(&path).expect("sources are text");
        found.entry(module).or_default().push_str(&code(&source));
    }
}

/// The names at the beginning of `text` that follow `::`, and what is behind them. A group in braces gives one path for each of its
/// members.
fn paths(text: &str) -> (Vec<Module>, &str) {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        let mut all = Vec::new();
        loop {
            let (more, behind) = paths(rest);
            all.extend(more);
            // Up to the end of the member: behind `as NAME` or nothing.
            let end = behind.find([',', '}']).unwrap_or(behind.len());
            rest = behind[end..].trim_start();
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => return (all, rest.strip_prefix('}').unwrap_or_default()),
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    if name.is_empty() {
        return (vec![Vec::new()], rest);
    }
    let (mut tails, rest) = match rest.strip_prefix("::") {
        Some(tail) => paths(tail),
        None => (vec![Vec::new()], rest),
    };
    for tail in &mut tails {
        tail.insert(0, name.to_owned());
    }
    (tails, rest)
}

/// All paths in the code of `module` that begin with `crate`, `self` or `super`, from the crate's root on.
fn named(module: &[String], code: &str) -> Vec<Module> {
    let mut all = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("::") {
        let head = rest[..at]
            .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
            .unwrap_or_default();
        let tail = &rest[at + 2..];
        if !["crate", "self", "super"].contains(&head) {
            rest = tail;
            continue;
        }
        let (tails, behind) = paths(tail);
        rest = behind;
        for tail in tails {
            let mut from = match head {
                "crate" => Vec::new(),
                "super" => module[..module.len().saturating_sub(1)].to_vec(),
                _ => module.to_vec(),
            };
            for name in tail {
                match &*name {
                    "super" => drop(from.pop()),
                    "self" => {}
                    _ => from.push(name),
                }
            }
            all.push(from);
        }
    }
    all
}

/// For each module, names that it passes on from its children, and the child.
fn passed_on(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, Module> {
    let mut all = BTreeMap::new();
    for (module, code) in modules {
        for part in code.split("pub").skip(1) {
            let part = part.trim_start();
            let part = match part.strip_prefix('(') {
                Some(limited) => limited.split_once(')').map_or("", |(_, rest)| rest),
                None => part,
            };
            let Some(used) = part.trim_start().strip_prefix("use ") else {
                continue;
            };
            for path in paths(used).0 {
                let path = match path.first().map(String::as_str) {
                    Some("self") => &path[1..],
                    _ => &path[..],
                };
                let (Some(child), Some(name)) = (path.first(), path.last()) else {
                    continue;
                };
                let (mut public, mut target) = (module.clone(), module.clone());
                public.push(name.clone());
                target.push(child.clone());
                if modules.contains_key(&target) && public != target {
                    all.insert(public, target);
                }
            }
        }
    }
    all
}

/// Which siblings each module uses.
fn dependencies(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let passed_on = passed_on(modules);
    let mut all: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, code) in modules {
        for path in named(module, code) {
            let prefixes = (1..=path.len()).map(|end| &path[..end]);
            let target = prefixes.clone().find_map(|prefix| passed_on.get(prefix));
            let target = target.map_or(&path[..], Vec::as_slice);
            let same = module.iter().zip(target).take_while(|(a, b)| a == b);
            let same = same.count();
            if same == module.len() || same == target.len() {
                continue;
            }
            let sibling = target[..=same].to_vec();
            if modules.contains_key(&sibling) {
                let own = module[..=same].to_vec();
                all.entry(own).or_default().insert(sibling);
            }
        }
    }
    all
}

/// A cycle of modules; `None` if there is none.
fn cycle(dependencies: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<String>> {
    let mut left = dependencies.clone();
    // What depends on nothing that is left is in no cycle.
    loop {
        let known: BTreeSet<Module> = left.keys().cloned().collect();
        let before = known.len();
        left.retain(|_, on| on.iter().any(|on| known.contains(on)));
        if left.len() == before {
            break;
        }
    }
    let mut path = vec![left.keys().next()?.clone()];
    loop {
        let last = path.last().expect("it begins with one");
        let next = left[last].iter().find(|on| left.contains_key(*on));
        let next = next.expect("each that is left depends on another").clone();
        if let Some(at) = path.iter().position(|of| *of == next) {
            path.push(next);
            let names = path[at..].iter().map(|module| module.join("::"));
            return Some(names.collect());
        }
        path.push(next);
    }
}

fn cycle_in(package: &Package) -> Option<Vec<String>> {
    let mut found = BTreeMap::new();
    modules(
        &package.manifest_path.with_file_name("src"),
        &[],
        &mut found,
    );
    cycle(&dependencies(&found))
}

#[test]
fn modules_have_no_import_cycles() {
    for (folder, package) in Workspace::load().crates() {
        let cycle = cycle_in(package);
        match MAY_HAVE_CYCLES.contains(&folder.as_str()) {
            true => assert!(
                cycle.is_some(),
                "crates/{folder} has no cycle of modules: take it off the list"
            ),
            false => assert_eq!(
                cycle, None,
                "modules of crates/{folder} depend on each other in a circle: move what both need into one that depends on neither"
            ),
        }
    }
}

fn of(sources: &[(&str, &str)]) -> Option<Vec<String>> {
    let modules = sources.iter().map(|(module, source)| {
        let module = module.split("::").filter(|name| !name.is_empty());
        (module.map(str::to_owned).collect(), code(source))
    });
    cycle(&dependencies(&modules.collect()))
}

#[test]
fn cycles_are_found_also_through_groups_and_names_that_are_passed_on() {
    let leaf = ("b", "pub struct B;");
    assert_eq!(of(&[("", ""), ("a", "use crate::b::B;"), leaf]), None);
    let cycle = Some(["a", "b", "a"].map(str::to_owned).to_vec());
    let back = [
        "use crate::a::A;",
        "use super::a;",
        "use crate::{c, a::{self, A as Other}, d};",
        "fn f() { crate::a::f() }",
        "use crate::A;",
        "fn f() -> super::A { todo!() }",
    ];
    for back in back {
        let root = ("", "mod a; mod b;\npub use a::{A, Other};");
        let sources = [root, ("a", "use super::b::B;"), ("b", back)];
        assert_eq!(of(&sources), cycle, "{back}");
    }
    let not_back = [
        "// use crate::a::A;",
        "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
        "use other::crate_a::A;",
    ];
    for not_back in not_back {
        let sources = [("", ""), ("a", "use super::b::B;"), ("b", not_back)];
        assert_eq!(of(&sources), None, "{not_back}");
    }
    let through_three = [
        ("x::a", "use super::b::B;"),
        ("x::b", "use crate::x::c;"),
        ("x::c", "use super::super::x::a;"),
        ("x", ""),
    ];
    assert_eq!(of(&through_three).expect("a cycle").len(), 4);
    let of_children = [
        ("a", ""),
        ("a::b", "use crate::c::C;"),
        ("c", ""),
        ("c::d", "use crate::a::A;"),
    ];
    assert!(of(&of_children).is_some());
}
