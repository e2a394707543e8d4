//! Prints the reports of benchmarks as text. A report is a JSON object of figures; a figure's name ends with its unit. An object
//! within a report becomes a section, and a list of objects a table.

use crate::output::table;
use crate::units;
use serde_json::{Map, Value};
use std::io::{self, Write};

/// The key of the machine's description, which is printed last.
const MACHINE: &str = "machine";

pub fn write(report: &Value, to: &mut dyn Write) -> io::Result<()> {
    match report {
        Value::Object(object) => section("", object, to),
        other => writeln!(to, "{}", cell("", other)),
    }
}

/// Prints the figures of an object, then its nested objects and lists.
fn section(path: &str, object: &Map<String, Value>, to: &mut dyn Write) -> io::Result<()> {
    let flat = |value: &Value| !value.is_object() && rows(value).is_none();
    let figures = object
        .iter()
        .filter(|(_, value)| flat(value) && !value.is_null());
    let lines: Vec<_> = figures
        .map(|(name, value)| vec![title(name), cell(name, value)])
        .collect();
    if !path.is_empty() && !lines.is_empty() {
        writeln!(to, "\n{path}")?;
    }
    let width = lines
        .iter()
        .map(|line| line[0].chars().count())
        .max()
        .unwrap_or(0);
    for line in &lines {
        let (name, value) = (&line[0], &line[1]);
        let indent = if path.is_empty() { "" } else { "  " };
        writeln!(to, "{indent}{name:<width$}  {value}")?;
    }
    let nested = |(name, _): &(&String, &Value)| *name != MACHINE;
    let machine = object.get_key_value(MACHINE);
    for (name, value) in object.iter().filter(nested).chain(machine) {
        let path = match path {
            "" => title(name),
            path => format!("{path}, {}", title(name)),
        };
        if let Value::Object(object) = value {
            section(&path, object, to)?;
        } else if let Some(rows) = rows(value) {
            list(&path, &rows, to)?;
        }
    }
    Ok(())
}

/// The entries of a list that holds only objects. None: `value` is something else, or empty.
fn rows(value: &Value) -> Option<Vec<&Map<String, Value>>> {
    let list = value.as_array().filter(|list| !list.is_empty())?;
    list.iter().map(Value::as_object).collect()
}

fn list(path: &str, rows: &[&Map<String, Value>], to: &mut dyn Write) -> io::Result<()> {
    let flat: Vec<Map<String, Value>> = rows.iter().map(|row| flattened("", row)).collect();
    let mut names: Vec<&str> = Vec::new();
    for name in flat.iter().flat_map(Map::keys) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let cells: Vec<Vec<String>> = flat
        .iter()
        .map(|row| {
            names
                .iter()
                .map(|name| {
                    row.get(*name)
                        .map_or_else(String::new, |value| cell(name, value))
                })
                .collect()
        })
        .collect();
    let heads: Vec<String> = names
        .iter()
        .map(|name| title(name).to_uppercase())
        .collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    writeln!(to, "\n{path}")?;
    table(to, &heads, &cells)
}

/// Turns the fields of nested objects into columns of the row.
fn flattened(prefix: &str, row: &Map<String, Value>) -> Map<String, Value> {
    let mut flat = Map::new();
    for (name, value) in row {
        let name = format!("{prefix}{name}");
        match value {
            Value::Object(object) => flat.extend(flattened(&format!("{name}."), object)),
            value => drop(flat.insert(name, value.clone())),
        }
    }
    flat
}

/// The suffix of a figure's name, and the unit to print for it.
const UNITS: [(&str, &str); 5] = [
    ("_us", "us"),
    ("_ns", "ns"),
    ("_ms", "ms"),
    ("gb_per_s", "GB/s"),
    ("gbit_s", "Gbit/s"),
];

/// A figure's name without its unit.
fn title(name: &str) -> String {
    let unit = UNITS.iter().find(|(end, _)| name.ends_with(end));
    let name = unit.map_or(name, |(end, _)| &name[..name.len() - end.len()]);
    match name.trim_end_matches("_bytes").trim_end_matches('_') {
        "" => "rate".to_owned(),
        name => name.replace('_', " "),
    }
}

fn cell(name: &str, value: &Value) -> String {
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => {
            let is_size = name == "size" || name.ends_with("_bytes") || name.ends_with(".size");
            match (number.as_u64(), number.as_f64()) {
                (Some(bytes), _) if is_size => return units::bytes(bytes),
                (None, Some(float)) => crate::array::short(float),
                _ => number.to_string(),
            }
        }
        Value::Array(values) => {
            let cells: Vec<String> = values.iter().map(|value| cell(name, value)).collect();
            return cells.join(", ");
        }
        Value::Object(_) => value.to_string(),
    };
    match UNITS.iter().find(|(end, _)| name.ends_with(end)) {
        Some((_, unit)) => format!("{text} {unit}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(value: Value) -> String {
        let mut text = Vec::new();
        write(&value, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn figures_sections_and_tables_have_units() {
        let report = json!({
            "size": 4096, "p50_us": 1.234567, "machine": { "cores": 2 }, "gpu": null,
            "floor": { "p50_us": 0.5 }, "loads": [1, 2],
            "counts": [{ "processes": 1, "of": { "p99_us": 2.0 } }, { "processes": 2, "of": { "p99_us": 3.5 } }],
        });
        assert_eq!(
            text(report),
            "size   4.0 KiB\np50    1.23457 us\nloads  1, 2\n\nfloor\n  p50  0.5 us\n\ncounts\n\
             PROCESSES  OF.P99\n1          2 us\n2          3.5 us\n\nmachine\n  cores  2\n"
        );
    }
}
