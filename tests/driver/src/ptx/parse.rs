//! Reads PTX text.

use super::instruction::{Instruction, Kind, Operand, Operation, Space, Special, Type};
use crate::abi::Code;
use std::collections::HashMap;

/// A variable of a module.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    pub(crate) is_managed: bool,
    /// What it holds at first; the rest is zeros.
    pub(crate) initial: Vec<u8>,
}

/// A kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// Offset and bytes of each parameter.
    pub(crate) parameters: Vec<(usize, usize)>,
    pub(crate) shared_bytes: usize,
    pub(crate) local_bytes: usize,
    pub(crate) threads_max: Option<u32>,
    pub(crate) registers: usize,
    /// Why it cannot be run, or what it does.
    pub(crate) code: Result<Vec<Instruction>, String>,
}

/// A module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    pub(crate) variables: Vec<Variable>,
    pub(crate) kernels: Vec<Kernel>,
}

const NO_TYPE: Type = Type {
    kind: Kind::Bits,
    bytes: 4,
};

fn align(at: usize, to: usize) -> usize {
    at.next_multiple_of(to.max(1))
}

/// All of a text, or the first thing that is no PTX.
pub(crate) fn parse(text: &str) -> Result<Text, Code> {
    let text = without_comments(text);
    if !text.contains(".version") || !text.contains(".target") {
        return Err(Code::INVALID_PTX);
    }
    let mut found = Text::default();
    let mut kernels = Vec::new();
    // Of all kernels: each that uses one has it for itself.
    let mut shared = Vec::new();
    let mut rest = text.as_str();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            break;
        }
        if [".version", ".target", ".address_size", ".file"]
            .iter()
            .any(|d| rest.starts_with(d))
        {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
            continue;
        }
        let end = rest.find([';', '{']).ok_or(Code::INVALID_PTX)?;
        let head = &rest[..end];
        if rest[end..].starts_with(';') {
            if head.contains(".shared") && !head.contains(".extern") {
                shared.push(head);
            }
            declare(head, &mut found.variables)?;
            rest = &rest[end + 1..];
        } else if head.contains('=') {
            let close = rest.find(';').ok_or(Code::INVALID_PTX)?;
            declare(&rest[..close], &mut found.variables)?;
            rest = &rest[close + 1..];
        } else {
            let close = end + closing(&rest[end..]).ok_or(Code::INVALID_PTX)?;
            if head.contains(".entry") {
                kernels.push((head, &rest[end + 1..close]));
            }
            rest = &rest[close + 1..];
        }
    }
    // Last, since they name variables.
    let kernels = kernels
        .into_iter()
        .map(|(head, body)| kernel(head, body, &found.variables, &shared));
    found.kernels = kernels.collect::<Result<_, _>>()?;
    Ok(found)
}

fn without_comments(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("/*") {
        all.push_str(before);
        rest = behind.split_once("*/").map_or("", |(_, behind)| behind);
    }
    all.push_str(rest);
    let lines = all
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The position of the brace that closes the first one.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Name, bytes of an element, elements (`None`: without a length) and alignment of a declaration.
fn declaration(head: &str) -> Option<(String, usize, Option<usize>, usize)> {
    let head = head.split('=').next()?;
    let words: Vec<&str> = head.split_whitespace().collect();
    let alignment = words.iter().position(|word| *word == ".align");
    let alignment = alignment.and_then(|at| words.get(at + 1)?.parse().ok());
    // Of a pointer, it is the alignment of what it points to.
    let alignment = alignment.filter(|_| !words.contains(&".ptr"));
    let kind = words
        .iter()
        .find_map(|word| Type::named(word.strip_prefix('.')?))?;
    let name = words.last()?;
    let (name, count) = match name.split_once('[') {
        Some((name, length)) => (name, length.trim_end_matches(']').parse().ok()),
        None => (*name, Some(1)),
    };
    Some((
        name.to_owned(),
        kind.bytes,
        count,
        alignment.unwrap_or(kind.bytes),
    ))
}

fn declare(text: &str, variables: &mut Vec<Variable>) -> Result<(), Code> {
    if !text.contains(".global") && !text.contains(".const") {
        // Functions elsewhere, and shared memory of a launch: bodies that use them say so.
        return Ok(());
    }
    let (name, element, count, _) = declaration(text).ok_or(Code::INVALID_PTX)?;
    let bytes = element * count.ok_or(Code::INVALID_PTX)?;
    let mut initial = Vec::new();
    if let Some((_, values)) = text.split_once('=') {
        let values = values.trim().trim_matches(['{', '}']);
        for value in values.split(',').filter(|value| !value.trim().is_empty()) {
            let value = immediate(value.trim()).ok_or(Code::INVALID_PTX)?;
            initial.extend_from_slice(&value.to_le_bytes()[..element]);
        }
    }
    variables.push(Variable {
        name,
        bytes,
        is_managed: text.contains(".managed"),
        initial,
    });
    Ok(())
}

fn immediate(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u32::from_str_radix(bits, 16).ok().map(u64::from);
    }
    if let Some(bits) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return u64::from_str_radix(bits, 16).ok();
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let digits = digits.trim_end_matches('U');
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

/// Names inside a kernel.
struct Names<'a> {
    parameters: HashMap<String, usize>,
    /// Variables in shared and local memory.
    places: HashMap<String, usize>,
    labels: HashMap<String, usize>,
    registers: HashMap<String, usize>,
    variables: &'a [Variable],
}

fn kernel(head: &str, body: &str, variables: &[Variable], shared: &[&str]) -> Result<Kernel, Code> {
    let (_, named) = head.split_once(".entry").ok_or(Code::INVALID_PTX)?;
    let (name, rest) = named.split_once('(').unwrap_or((named, ""));
    let (list, directives) = rest.split_once(')').unwrap_or(("", ""));
    let mut labels = HashMap::new();
    let mut names = Names {
        parameters: HashMap::new(),
        places: HashMap::new(),
        labels: HashMap::new(),
        registers: HashMap::new(),
        variables,
    };
    let mut parameters = Vec::new();
    let mut offset = 0;
    for parameter in list.split(',').filter(|text| !text.trim().is_empty()) {
        let (name, element, count, alignment) = declaration(parameter).ok_or(Code::INVALID_PTX)?;
        let bytes = element * count.ok_or(Code::INVALID_PTX)?;
        offset = align(offset, alignment);
        names.parameters.insert(name, offset);
        parameters.push((offset, bytes));
        offset += bytes;
    }
    let statements = statements(body);
    let (mut shared_bytes, mut local_bytes) = (0, 0);
    let mut place = |text: &str, space: &mut usize| {
        let (name, element, count, alignment) = declaration(text).ok_or(Code::INVALID_PTX)?;
        *space = align(*space, alignment);
        names.places.insert(name, *space);
        *space += element * count.unwrap_or(0);
        Ok(())
    };
    for text in shared {
        place(text, &mut shared_bytes)?;
    }
    let mut position = 0;
    for statement in &statements {
        match statement {
            Statement::Label(label) => {
                labels.insert((*label).to_owned(), position);
            }
            Statement::Code(_) => position += 1,
            Statement::Declaration(text) => {
                match (text.contains(".shared"), text.contains(".local")) {
                    (true, _) => place(text, &mut shared_bytes)?,
                    (_, true) => place(text, &mut local_bytes)?,
                    _ => {}
                }
            }
        }
    }
    names.labels = labels;
    // Shared memory of a launch is behind that of the kernel, whatever its name.
    shared_bytes = align(shared_bytes, 16);
    let code = statements.iter().filter_map(|statement| match statement {
        Statement::Code(text) => Some(instruction(text, &mut names, shared_bytes)),
        _ => None,
    });
    let code = code.collect();
    let maximum = directives.split_once(".maxntid").map(|(_, rest)| rest);
    let threads_max = maximum.map(|rest| {
        let numbers = rest
            .split([',', ' ', '\n'])
            .map(str::trim)
            .filter(|word| !word.is_empty());
        numbers.map_while(|word| word.parse::<u32>().ok()).product()
    });
    Ok(Kernel {
        name: name.trim().to_owned(),
        parameters,
        shared_bytes,
        local_bytes,
        threads_max,
        registers: names.registers.len(),
        code,
    })
}

enum Statement<'a> {
    Label(&'a str),
    Declaration(&'a str),
    Code(&'a str),
}

fn statements(body: &str) -> Vec<Statement<'_>> {
    let mut all = Vec::new();
    for part in body.split(';') {
        let mut rest = part.trim_matches(|c: char| c.is_whitespace());
        loop {
            // Braces of scopes; vectors come behind a name.
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '{' || c == '}');
            match rest.split_once(':') {
                Some((label, behind))
                    if !label.contains([' ', '\t', '[', ',']) && !behind.starts_with(':') =>
                {
                    all.push(Statement::Label(label.trim()));
                    rest = behind;
                }
                _ => break,
            }
        }
        let is_line = |line: &&str| {
            !line.trim_start().starts_with(".loc\t") && !line.trim_start().starts_with(".loc ")
        };
        if rest.is_empty()
            || rest.starts_with(".pragma")
            || rest.lines().all(|line| !is_line(&line))
        {
            continue;
        }
        all.push(match rest.starts_with('.') {
            true => Statement::Declaration(rest),
            false => Statement::Code(rest),
        });
    }
    all
}

fn space_of(parts: &[String]) -> Space {
    let has = |name: &str| {
        parts
            .iter()
            .any(|part| part == name || part.starts_with(&format!("{name}::")))
    };
    match () {
        () if has("param") => Space::Parameter,
        () if has("shared") => Space::Shared,
        () if has("local") => Space::Local,
        () if has("global") || has("const") => Space::Global,
        () => Space::Generic,
    }
}

fn operation(parts: &[String]) -> Option<Operation> {
    let space = space_of(parts);
    let has = |name: &str| parts.iter().any(|part| part == name);
    Some(match parts[0].as_str() {
        "ld" | "ldu" => Operation::Load(space),
        "st" => Operation::Store(space),
        "atom" | "red" => Operation::Atomic(space),
        "cvta" if has("to") => Operation::ToSpace(space),
        "cvta" => Operation::FromSpace(space),
        "mov" => Operation::Move,
        "setp" => Operation::Compare,
        "selp" => Operation::Select,
        "cvt" => Operation::Convert,
        "bra" => Operation::Branch(0),
        "ret" | "exit" => Operation::Exit,
        "bar" | "barrier" if !has("warp") => Operation::Barrier,
        "bar" | "membar" | "fence" | "nanosleep" | "prefetch" | "discard" => Operation::Nothing,
        "trap" => Operation::Trap,
        "shfl" => Operation::Shuffle,
        "vote" => Operation::Vote,
        name if super::alu::KNOWN.contains(&name) => Operation::Alu,
        _ => return None,
    })
}

fn instruction(
    text: &str,
    names: &mut Names<'_>,
    dynamic_shared: usize,
) -> Result<Instruction, String> {
    let unknown = || format!("the interpreter does not know '{}'", text.trim());
    let mut text = text.trim();
    let mut guard = None;
    if let Some(rest) = text.strip_prefix('@') {
        let (predicate, behind) = rest.split_once(char::is_whitespace).ok_or_else(unknown)?;
        let (negated, predicate) = match predicate.strip_prefix('!') {
            Some(predicate) => (true, predicate),
            None => (false, predicate),
        };
        guard = Some((register(predicate, names), negated));
        text = behind.trim_start();
    }
    let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let name: Vec<String> = name.split('.').map(str::to_owned).collect();
    let mut operation = operation(&name).ok_or_else(unknown)?;
    let mut kinds = name[1..].iter().filter_map(|part| Type::named(part));
    let kind = kinds.next().unwrap_or(NO_TYPE);
    let from = kinds.next().unwrap_or(kind);
    let operands = split(operands);
    let operands: Option<Vec<Operand>> = match &mut operation {
        Operation::Branch(target) => {
            *target = *names
                .labels
                .get(*operands.first().ok_or_else(unknown)?)
                .ok_or_else(unknown)?;
            Some(Vec::new())
        }
        Operation::Exit | Operation::Barrier | Operation::Nothing | Operation::Trap => {
            Some(Vec::new())
        }
        _ => operands
            .iter()
            .map(|text| operand(text, names, dynamic_shared))
            .collect(),
    };
    Ok(Instruction {
        guard,
        operation,
        name,
        kind,
        from,
        operands: operands.ok_or_else(unknown)?,
    })
}

/// Operands, which commas part, but not those inside brackets and braces.
fn split(text: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                all.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    all.push(text[start..].trim());
    all.retain(|part| !part.is_empty());
    all
}

fn register(name: &str, names: &mut Names<'_>) -> usize {
    let next = names.registers.len();
    *names
        .registers
        .entry(name.trim().to_owned())
        .or_insert(next)
}

fn operand(text: &str, names: &mut Names<'_>, dynamic_shared: usize) -> Option<Operand> {
    let text = text.trim();
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']')?.trim();
        // A sign behind the name; a number alone may have one, too.
        let (base, offset) = match inner
            .find(['+'])
            .or_else(|| inner.rfind('-').filter(|at| *at > 0))
        {
            Some(at) => (
                &inner[..at],
                immediate(inner[at..].trim_start_matches('+').trim())? as i64,
            ),
            None => (inner, 0),
        };
        return Some(Operand::Memory(
            Box::new(operand(base, names, dynamic_shared)?),
            offset,
        ));
    }
    if let Some(inner) = text.strip_prefix('{') {
        let parts = inner.strip_suffix('}')?.split(',');
        let parts: Option<Vec<_>> = parts
            .map(|part| operand(part, names, dynamic_shared))
            .collect();
        return parts.map(Operand::Several);
    }
    if let Some((one, other)) = text.split_once('|') {
        let both = [one, other].map(|part| operand(part, names, dynamic_shared));
        return both
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .map(Operand::Several);
    }
    if text == "_" {
        return Some(Operand::Nothing);
    }
    if let Some(special) = special(text) {
        return Some(Operand::Special(special));
    }
    if text.starts_with('%') {
        return Some(Operand::Register(register(text, names)));
    }
    if let Some(value) = immediate(text) {
        return Some(Operand::Immediate(value));
    }
    if let Some(offset) = names
        .parameters
        .get(text)
        .or_else(|| names.places.get(text))
    {
        return Some(Operand::Immediate(*offset as u64));
    }
    if let Some(position) = names
        .variables
        .iter()
        .position(|variable| variable.name == text)
    {
        return Some(Operand::Global(position));
    }
    // Shared memory of the launch, or a register of inline assembly.
    match text.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '$') {
        true if text.starts_with('p') && text.len() <= 2 => {
            Some(Operand::Register(register(text, names)))
        }
        true => Some(Operand::Immediate(dynamic_shared as u64)),
        false => None,
    }
}

fn special(text: &str) -> Option<Special> {
    let axis = |name: &str| match name {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    Some(match text {
        "%laneid" => Special::Lane,
        "WARP_SZ" => Special::WarpSize,
        "%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo" => Special::Clock,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        _ => {
            let (name, of) = text.split_once('.')?;
            let axis = axis(of)?;
            match name {
                "%tid" => Special::Thread(axis),
                "%ntid" => Special::Threads(axis),
                "%ctaid" => Special::Block(axis),
                "%nctaid" => Special::Blocks(axis),
                _ => return None,
            }
        }
    })
}
