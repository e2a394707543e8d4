//! Tests that `include/rgaps.h` and `include/rgaps/device.h` declare the same functions, structures and constants as this crate,
//! with the same types. The tests compare text: they bring the declarations of both sides to one form, C's without spaces
//! around `*`.

use crate::device::ROLES;
use crate::device_bridge::DIRECTIONS;
use crate::path::PATHS;
use crate::publisher::SLOW_READER;
use crate::status;
use crate::subscriber::LATE;
use rgaps_layout::{DType, MAX_ATTACHMENT_BYTES, MAX_DIMS, MAX_MESSAGE_PARTS, MAX_PART_NAME};
use std::collections::BTreeMap;

const HEADER: &str = concat!(
    include_str!("../include/rgaps.h"),
    include_str!("../include/rgaps/device.h")
);

const SOURCES: [&str; 15] = [
    include_str!("boundary.rs"),
    include_str!("device.rs"),
    include_str!("device_bridge.rs"),
    include_str!("handle.rs"),
    include_str!("listener.rs"),
    include_str!("loan.rs"),
    include_str!("metadata.rs"),
    include_str!("node.rs"),
    include_str!("publisher.rs"),
    include_str!("sample.rs"),
    include_str!("status.rs"),
    include_str!("subscriber.rs"),
    include_str!("tensor.rs"),
    include_str!("version.rs"),
    include_str!("wait_set.rs"),
];

/// By name: the types and names of a function's result and parameters, or of a structure's fields.
type Declarations = BTreeMap<String, Vec<String>>;

/// The header without comments and preprocessor lines.
fn declarations() -> String {
    let mut text = String::new();
    let mut rest = HEADER;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    text.push_str(rest);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .collect::<Vec<_>>()
        .join(" ")
        .replace("extern \"C\" {", "")
}

/// `const void **data` as `const void**`, `data`.
fn split_c(declaration: &str) -> (String, String) {
    let words = declaration.split_whitespace().collect::<Vec<_>>().join(" ");
    let start = words.rfind(['*', ' ']).expect("a type and a name");
    let (kind, name) = words.split_at(start + 1);
    let kind = kind.trim_end();
    // No space between a type and its stars.
    let stars = kind.trim_end_matches('*');
    let kind = format!("{}{}", stars.trim_end(), &kind[stars.len()..]);
    (kind, name.to_owned())
}

fn c_functions() -> Declarations {
    let mut functions = Declarations::new();
    for statement in declarations().split([';', '}']) {
        let statement = statement.trim();
        if statement.starts_with("typedef") || !statement.ends_with(')') {
            continue;
        }
        let (head, parameters) = statement
            .split_once('(')
            .expect("it ends with a parenthesis");
        let (result, name) = split_c(head);
        let parameters = parameters.trim_end_matches(')');
        let mut all = vec![result];
        if parameters != "void" {
            all.extend(parameters.split(',').map(|parameter| {
                let (kind, name) = split_c(parameter);
                format!("{kind} {name}")
            }));
        }
        functions.insert(name, all);
    }
    functions
}

fn c_structures() -> Declarations {
    let text = declarations();
    let mut structures = Declarations::new();
    for structure in text.split("typedef struct ").skip(1) {
        let Some((head, rest)) = structure.split_once(" {") else {
            continue;
        };
        if head.contains(';') {
            continue; // an opaque one
        }
        let (fields, _) = rest.split_once('}').expect("structures end");
        let fields = fields.split(';').map(str::trim).filter(|f| !f.is_empty());
        let fields = fields.map(|field| {
            let (kind, name) = split_c(field);
            format!("{kind} {name}")
        });
        structures.insert(format!("{head}_t"), fields.collect());
    }
    structures
}

fn c_constants() -> BTreeMap<String, i64> {
    let text = declarations();
    let mut constants = BTreeMap::new();
    for list in text
        .split("enum ")
        .skip(1)
        .filter_map(|e| e.split_once('{'))
    {
        for constant in list
            .1
            .split('}')
            .next()
            .expect("one part at least")
            .split(',')
        {
            let (name, value) = constant.split_once('=').expect("all have their value");
            let value = value.trim().parse().expect("values are numbers");
            constants.insert(name.trim().to_owned(), value);
        }
    }
    constants
}

/// A Rust type as C writes it.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(to) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(to));
    }
    if let Some(to) = rust.strip_prefix("*const ") {
        return match to.starts_with('*') {
            // `const char *const *` without the space before its last star.
            true => format!("{} *const*", c_type(to).trim_end_matches('*')),
            false => format!("const {}*", c_type(to)),
        };
    }
    let known = [
        ("c_char", "char"),
        ("c_int", "int"),
        ("c_void", "void"),
        ("usize", "size_t"),
        ("u8", "uint8_t"),
        ("u16", "uint16_t"),
        ("u32", "uint32_t"),
        ("u64", "uint64_t"),
        ("i32", "int32_t"),
        ("i64", "int64_t"),
        ("f64", "double"),
    ];
    match known.iter().find(|(name, _)| *name == rust) {
        Some((_, c)) => (*c).to_owned(),
        None => {
            assert!(
                rust.starts_with("rgaps_") && rust.ends_with("_t"),
                "type {rust}"
            );
            rust.to_owned()
        }
    }
}

fn c_field(declaration: &str) -> String {
    let (name, kind) = declaration.split_once(':').expect("a name and a type");
    let name = name.trim().trim_start_matches("pub ");
    let array = kind
        .trim()
        .strip_prefix('[')
        .and_then(|k| k.strip_suffix("; MAX_DIMS]"));
    match array {
        Some(element) => format!("{} {name}[RGAPS_MAX_DIMS]", c_type(element)),
        None => format!("{} {name}", c_type(kind)),
    }
}

fn rust_functions() -> Declarations {
    let mut functions = Declarations::new();
    for source in SOURCES {
        for function in source.split("extern \"C\" fn ").skip(1) {
            let (name, rest) = function.split_once('(').expect("parameters begin");
            if !name.starts_with("rgaps_") {
                continue; // a function of the macro `accessors`, or a fork handler
            }
            let (parameters, rest) = rest.split_once(')').expect("parameters end");
            let (result, _) = rest.split_once('{').expect("a body begins");
            let result = match result.trim().strip_prefix("->") {
                Some(result) => c_type(result),
                None => "void".to_owned(),
            };
            let parameters = parameters.split(',').filter(|p| !p.trim().is_empty());
            let mut all = vec![result];
            all.extend(parameters.map(c_field));
            functions.insert(name.to_owned(), all);
        }
        // The accessors of samples: `name -> type = none, ...`.
        for line in source
            .lines()
            .filter(|line| line.starts_with("    rgaps_sample_"))
        {
            let (name, rest) = line.trim().split_once(" -> ").expect("an accessor");
            let (result, _) = rest.split_once(" = ").expect("a value for none");
            let all = vec![c_type(result), "const rgaps_sample_t* sample".to_owned()];
            functions.insert(name.to_owned(), all);
        }
    }
    functions
}

fn rust_structures() -> Declarations {
    let mut structures = Declarations::new();
    for source in SOURCES {
        for structure in source.split("#[repr(C)]").skip(1) {
            let (_, rest) = structure.split_once("pub struct ").expect("a structure");
            let (name, rest) = rest.split_once(" {").expect("it begins");
            let (fields, _) = rest.split_once('}').expect("it ends");
            let fields = fields.split(",\n").filter(|field| !field.trim().is_empty());
            structures.insert(name.to_owned(), fields.map(c_field).collect());
        }
    }
    structures
}

#[test]
fn functions_are_the_same_on_both_sides() {
    let (c, rust) = (c_functions(), rust_functions());
    assert!(c.len() > 50, "only {} functions were found", c.len());
    for (name, declaration) in &c {
        assert_eq!(
            rust.get(name),
            Some(declaration),
            "{name}: Rust left, C right"
        );
    }
    for name in rust.keys() {
        assert!(c.contains_key(name), "{name} is not in rgaps.h");
    }
}

#[test]
fn structures_are_the_same_on_both_sides() {
    let (c, rust) = (c_structures(), rust_structures());
    assert_eq!(c.len(), 7, "{:?}", c.keys());
    assert_eq!(c, rust);
}

#[test]
fn constants_are_the_same_on_both_sides() {
    let mut constants = c_constants();
    for (value, name) in status::names() {
        assert_eq!(constants.remove(name), Some(value), "{name}");
    }
    for (name, value) in LATE.into_iter().chain(SLOW_READER) {
        assert_eq!(constants.remove(name), Some(i64::from(value)), "{name}");
    }
    assert_eq!(constants.remove("RGAPS_PATH_ANY"), Some(0));
    for (name, path) in PATHS {
        let value = i64::from(path.number());
        assert_eq!(constants.remove(name), Some(value), "{name}");
    }
    let dtypes = [
        ("INT", "int8"),
        ("UINT", "uint8"),
        ("FLOAT", "float16"),
        ("BFLOAT", "bfloat16"),
        ("COMPLEX", "complex64"),
        ("BOOL", "bool"),
    ];
    for (name, dtype) in dtypes {
        let name = format!("RGAPS_DTYPE_{name}");
        let dtype: DType = dtype.parse().expect("a name of the table");
        assert_eq!(
            constants.remove(&name),
            Some(i64::from(dtype.code)),
            "{name}"
        );
    }
    let roles = ROLES.into_iter().map(|(name, _)| name).enumerate();
    let directions = DIRECTIONS.into_iter().map(|(name, _)| name).enumerate();
    for (value, name) in roles.chain(directions) {
        assert_eq!(constants.remove(name), Some(value as i64), "{name}");
    }
    assert!(constants.is_empty(), "of the header only: {constants:?}");
}

/// `RGAPS_WRITE_HEADER=1` writes it.
#[test]
fn the_layout_of_device_topics_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/include/rgaps/device_layout.h");
    let wanted = rgaps_layout::device_header();
    if std::env::var_os("RGAPS_WRITE_HEADER").is_some() {
        std::fs::write(path, &wanted).expect("the header can be written");
    }
    let found = std::fs::read_to_string(path).expect("the header is there");
    assert!(
        found == wanted,
        "{path} is not what crates/layout/src/device.rs says: run this test with RGAPS_WRITE_HEADER=1"
    );
}

#[test]
fn macros_are_up_to_date() {
    let value = |name: &str| {
        let line = HEADER
            .lines()
            .find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        line.unwrap_or_else(|| panic!("{name} is not defined"))
            .trim()
    };
    let version = ["MAJOR", "MINOR", "PATCH"].map(|part| value(&format!("RGAPS_VERSION_{part}")));
    assert_eq!(version.join("."), env!("CARGO_PKG_VERSION"));
    assert_eq!(value("RGAPS_MAX_DIMS"), MAX_DIMS.to_string());
    let limits = [
        ("RGAPS_MAX_ATTACHMENT_BYTES", MAX_ATTACHMENT_BYTES),
        ("RGAPS_MAX_PARTS", MAX_MESSAGE_PARTS),
        ("RGAPS_MAX_PART_NAME", MAX_PART_NAME),
    ];
    for (name, limit) in limits {
        assert_eq!(value(name), limit.to_string());
    }
    assert_eq!(value("RGAPS_FOREVER"), "UINT64_MAX");
    assert_eq!(crate::boundary::FOREVER_NS, u64::MAX);
}
