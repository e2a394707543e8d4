//! The table of functions, and what its words mean.
//!
//! A line is a function: its name, what it gives, and the kinds of its parameters:
//!
//! | kind | parameter |
//! |---|---|
//! | `i`, `w`, `f`, `d` | an integer of 4 or 8 bytes, a float, a double; `i>2` is also kept in slot 2 of the first handle |
//! | `s` | a stream |
//! | `h:T`, `n:T`, `x:T` | a handle of type T, the address for a new one (`=1`: with 1 in slot 0), one that is destroyed |
//! | `p` | an address on the device, which neither end reads |
//! | `m:4`, `r:4`, `u:4` | a scalar, a result, or both; of the host if slot 0 of a handle (`@1`: that of parameter 1) is 0 (`/4`: or 4), else of the device. `m:16~` has at most 16 bytes |
//! | `b:4*3`, `o:4*3`, `c:64` | bytes of the host that are read, written, or both; 4 for each of as many elements as parameter 3 has |
//! | `v:8` | at most 8 bytes of the host that are read |
//! | `z` | a text |
//! | `k:1:8` | the address for the value of slot 1, in 8 bytes |
//! | `A` | elements of an attribute of cuDNN: type, count (and how many there were) are the parameters before it |
//!
//! Behind them, `?` begins a condition without which the call is invalid, and `!` what an attribute sets in a slot.

use std::sync::OnceLock;

const TEXT: &str = include_str!("functions.txt");
/// Most bytes of a scalar.
pub const SCALAR_BYTES_MAX: usize = 16;
/// Most bytes of an element of an attribute of cuDNN.
pub const ATTRIBUTE_BYTES_MAX: usize = 16;
/// Bytes of an address in an attribute as it crosses the connection: the address, whether it is the host's, and the value there.
pub const POINTER_ENTRY_BYTES: usize = 8 + 1 + SCALAR_BYTES_MAX;

/// What a function returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gives {
    /// A status that nobody waits for if nothing else comes back.
    Status,
    /// A status for which the client waits, unless a slot of the first handle has a value.
    Waits {
        /// The slot and the value.
        unless: Option<(u8, u64)>,
    },
    /// A status, and results that are always the same for the same arguments and the same contents of descriptors.
    Pure,
    /// A text of the library's.
    Text,
    /// A number.
    Word,
    /// Nothing.
    Nothing,
}

/// How many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// So many.
    Fixed(usize),
    /// So many for each element, of which the parameter with this position has the number.
    Each(usize, usize),
    /// The size of the `cudaDataType` in the parameter with this position.
    Type(usize),
}

/// The kind of a parameter, by which both ends pack and unpack it. The table of the module explains them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the module's table says it")]
pub enum ParameterKind {
    Int {
        keep: Option<u8>,
    },
    Word {
        keep: Option<u8>,
    },
    Float,
    Double,
    Stream {
        keep: Option<u8>,
    },
    Handle(u8),
    New {
        handle: u8,
        mode: u64,
    },
    Old(u8),
    Device,
    Scalar {
        bytes: usize,
        is_bounded: bool,
        of: usize,
        also: u64,
    },
    Result(Size),
    Both(usize),
    In(Size),
    Out(Size),
    InOut(usize),
    Value(usize),
    Text,
    Kept {
        slot: u8,
        bytes: usize,
    },
    Attribute,
}

/// A condition without which a call is invalid. Its numbers are positions of parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The parameter is not negative.
    NotNegative(usize),
    /// The parameter is not zero.
    NotZero(usize),
    /// A leading dimension is at least 1, and at least the rows: the second parameter, or the third if a matrix is transposed.
    Leading(usize, usize, Option<(usize, usize)>),
}

/// If `parameter` is `value`, the attribute `bytes` is kept in a slot of the first handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attribute {
    /// The parameter that names the attribute.
    pub parameter: usize,
    /// The attribute's number.
    pub value: u64,
    /// The parameter that points to the attribute's value.
    pub bytes: usize,
    /// The slot in which the value is kept.
    pub slot: u8,
}

/// A function of a library.
#[derive(Debug)]
pub struct Function {
    /// Its symbol.
    pub name: &'static str,
    /// The library, by position.
    pub library: u8,
    /// What it returns.
    pub gives: Gives,
    /// Its parameters.
    pub kinds: Vec<ParameterKind>,
    /// The conditions of a valid call.
    pub conditions: Vec<Condition>,
    /// The attributes that are kept in slots.
    pub attributes: Vec<Attribute>,
}

impl Function {
    /// For the elements of a cuDNN attribute in parameter `at`: the parameters with their type and their count. A function that gives
    /// elements has an output for the number of elements that it found between the count and the elements.
    pub fn attribute_words(&self, at: usize) -> (usize, usize) {
        let count = match at.checked_sub(1).and_then(|before| self.kinds.get(before)) {
            Some(ParameterKind::Out(_)) => at - 2,
            _ => at.saturating_sub(1),
        };
        (count.saturating_sub(1), count)
    }
}

/// Statuses that are given without asking the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub struct Statuses {
    pub not_initialised: i32,
    pub not_supported: i32,
    pub invalid: i32,
    pub failed: i32,
    /// A main handle that is null, or none of the library's.
    pub no_handle: i32,
}

/// A library.
#[derive(Debug)]
pub struct MathLibrary {
    /// Its name, without `lib`.
    pub name: &'static str,
    /// Versions that may be loaded, the best first.
    pub versions: Vec<&'static str>,
    /// The type of its main handle.
    pub handle: u8,
    /// Statuses that the client gives by itself.
    pub statuses: Statuses,
}

/// The whole table.
#[derive(Debug, Default)]
pub struct Table {
    /// Libraries by number.
    pub libraries: Vec<MathLibrary>,
    /// Functions by number.
    pub functions: Vec<Function>,
    /// Names of types of handles, by number.
    pub handles: Vec<&'static str>,
    /// Two ends with the same one have the same table.
    pub fingerprint: u64,
}

impl Table {
    /// The number of a type of handles.
    pub fn handle(&self, name: &str) -> Option<u8> {
        let found = self.handles.iter().position(|known| *known == name);
        found.map(|number| number as u8)
    }

    fn intern(&mut self, name: &'static str) -> u8 {
        self.handle(name).unwrap_or_else(|| {
            self.handles.push(name);
            (self.handles.len() - 1) as u8
        })
    }
}

/// The table of this version.
pub fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| read(TEXT))
}

/// The library that has a function of this name, forwarded or not.
pub fn library_of(name: &str) -> Option<&'static MathLibrary> {
    let libraries = &table().libraries;
    let longest = libraries
        .iter()
        .filter(|library| name.starts_with(library.name));
    longest.max_by_key(|library| library.name.len())
}

/// Bytes of an element of an attribute of cuDNN, by `cudnnBackendAttributeType_t`: handles, 64-bit numbers, doubles and addresses have 8,
/// truths and characters 1, fractions 16, and enumerations and the rest 4.
pub fn attribute_bytes(kind: u64) -> usize {
    match kind {
        0 | 3 | 5 | 6 | 15 => 8,
        2 | 24 => 1,
        26 => ATTRIBUTE_BYTES_MAX,
        _ => 4,
    }
}

impl Size {
    /// The bytes, where `word` gives a parameter's value; `None` if they cannot be counted.
    pub fn bytes(self, word: impl Fn(usize) -> u64) -> Option<usize> {
        match self {
            Size::Fixed(bytes) => Some(bytes),
            Size::Each(bytes, parameter) => {
                let count = (word(parameter) as i64).max(0);
                bytes.checked_mul(count as usize)
            }
            Size::Type(parameter) => data_type_bytes(word(parameter)),
        }
    }
}

/// Bytes of a `cudaDataType`.
fn data_type_bytes(kind: u64) -> Option<usize> {
    Some(match kind {
        3 | 8 | 28..=30 => 1,
        2 | 7 | 9 | 14 | 20 | 22 => 2,
        0 | 6 | 10 | 12 | 15 | 21 | 23 => 4,
        1 | 4 | 11 | 13 | 24 | 26 => 8,
        5 | 25 | 27 => 16,
        _ => return None,
    })
}

fn read(text: &'static str) -> Table {
    let mut table = Table {
        // FNV-1a.
        fingerprint: text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }),
        ..Table::default()
    };
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "library" => {
                let status = |at: usize| number(words[at]) as i32;
                let handle = table.intern(words[3]);
                table.libraries.push(MathLibrary {
                    name: words[1],
                    versions: words[2].split(',').collect(),
                    handle,
                    statuses: Statuses {
                        not_initialised: status(4),
                        not_supported: status(5),
                        invalid: status(6),
                        failed: status(7),
                        no_handle: status(8),
                    },
                });
            }
            name => {
                let function = read_function(&mut table, name, &words[1..]);
                table.functions.push(function);
            }
        }
    }
    table
}

fn read_function(table: &mut Table, name: &'static str, words: &[&'static str]) -> Function {
    let mut function = Function {
        name,
        library: (table.libraries.len() - 1) as u8,
        gives: read_gives(words[0]),
        kinds: Vec::new(),
        conditions: Vec::new(),
        attributes: Vec::new(),
    };
    for word in &words[1..] {
        if let Some(condition) = word.strip_prefix('?') {
            function.conditions.push(read_condition(condition));
        } else if let Some(attribute) = word.strip_prefix('!') {
            function.attributes.push(read_attribute(attribute));
        } else {
            function.kinds.push(read_kind(table, word));
        }
    }
    function
}

fn read_gives(word: &'static str) -> Gives {
    match cut(word, ':') {
        ("status", _) => Gives::Status,
        ("waits", unless) => Gives::Waits {
            unless: unless.map(|unless| {
                let (slot, value) = cut(unless, '=');
                (number(slot) as u8, number(value.unwrap_or_default()) as u64)
            }),
        },
        ("pure", _) => Gives::Pure,
        ("text", _) => Gives::Text,
        ("word", _) => Gives::Word,
        _ => Gives::Nothing,
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("numbers of the table are numbers")
}

/// The parts of a word around a character, and `None` if it is not there.
fn cut(text: &'static str, at: char) -> (&'static str, Option<&'static str>) {
    match text.split_once(at) {
        Some((before, behind)) => (before, Some(behind)),
        None => (text, None),
    }
}

fn read_kind(table: &mut Table, word: &'static str) -> ParameterKind {
    let (word, keep) = cut(word, '>');
    let keep = keep.map(|slot| number(slot) as u8);
    let (kind, rest) = cut(word, ':');
    let rest = rest.unwrap_or_default();
    match kind {
        "i" => ParameterKind::Int { keep },
        "w" => ParameterKind::Word { keep },
        "f" => ParameterKind::Float,
        "d" => ParameterKind::Double,
        "s" => ParameterKind::Stream { keep },
        "h" => ParameterKind::Handle(table.intern(rest)),
        "n" => {
            let (handle, mode) = cut(rest, '=');
            ParameterKind::New {
                handle: table.intern(handle),
                mode: mode.map_or(0, |mode| number(mode) as u64),
            }
        }
        "x" => ParameterKind::Old(table.intern(rest)),
        "p" => ParameterKind::Device,
        "m" => read_scalar(rest),
        "r" => ParameterKind::Result(read_size(rest)),
        "u" => ParameterKind::Both(number(rest)),
        "b" => ParameterKind::In(read_size(rest)),
        "o" => ParameterKind::Out(read_size(rest)),
        "c" => ParameterKind::InOut(number(rest)),
        "v" => ParameterKind::Value(number(rest)),
        "z" => ParameterKind::Text,
        "k" => {
            let (slot, bytes) = cut(rest, ':');
            ParameterKind::Kept {
                slot: number(slot) as u8,
                bytes: number(bytes.unwrap_or_default()),
            }
        }
        "A" => ParameterKind::Attribute,
        _ => unreachable!("the table has no kind {kind}"),
    }
}

fn read_scalar(text: &'static str) -> ParameterKind {
    let (text, also) = cut(text, '/');
    let (text, of) = cut(text, '@');
    let bytes = text.trim_end_matches('~');
    ParameterKind::Scalar {
        bytes: number(bytes),
        is_bounded: bytes != text,
        of: of.map_or(0, number),
        also: also.map_or(0, |mode| number(mode) as u64),
    }
}

fn read_size(text: &'static str) -> Size {
    if let Some(parameter) = text.strip_prefix("type") {
        return Size::Type(number(parameter));
    }
    match cut(text, '*') {
        (bytes, Some(parameter)) => Size::Each(number(bytes), number(parameter)),
        (bytes, None) => Size::Fixed(number(bytes)),
    }
}

fn read_condition(text: &str) -> Condition {
    let words: Vec<&str> = text.split(':').collect();
    let of = |at: usize| number(words[at]);
    match (words[0], words.len()) {
        ("ge0", _) => Condition::NotNegative(of(1)),
        ("not0", _) => Condition::NotZero(of(1)),
        ("lead", 3) => Condition::Leading(of(1), of(2), None),
        _ => Condition::Leading(of(1), of(3), Some((of(2), of(4)))),
    }
}

/// `1=2,2>0`: if parameter 1 is 2, parameter 2 is kept in slot 0.
fn read_attribute(text: &'static str) -> Attribute {
    let (meant, kept) = cut(text, ',');
    let (parameter, value) = cut(meant, '=');
    let (bytes, slot) = cut(kept.unwrap_or_default(), '>');
    Attribute {
        parameter: number(parameter),
        value: number(value.unwrap_or_default()) as u64,
        bytes: number(bytes),
        slot: number(slot.unwrap_or_default()) as u8,
    }
}

impl Condition {
    /// Whether it holds, where `word` gives a parameter's value.
    pub fn holds(self, word: impl Fn(usize) -> u64) -> bool {
        let signed = |at| word(at) as i64;
        match self {
            Condition::NotNegative(at) => signed(at) >= 0,
            Condition::NotZero(at) => signed(at) != 0,
            Condition::Leading(at, rows, transposed) => {
                let rows = match transposed {
                    Some((operation, columns)) if signed(operation) != 0 => columns,
                    _ => rows,
                };
                signed(at) >= signed(rows).max(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> &'static Function {
        let mut all = table().functions.iter();
        all.find(|function| function.name == name).unwrap()
    }

    #[test]
    fn the_table_is_read() {
        let gemm = function("cublasSgemm_v2");
        assert_eq!(gemm.kinds.len(), 14);
        assert_eq!(
            gemm.kinds[6],
            ParameterKind::Scalar {
                bytes: 4,
                is_bounded: false,
                of: 0,
                also: 0
            }
        );
        assert_eq!(gemm.gives, Gives::Status);
        let create = function("cublasCreate_v2");
        assert_eq!(create.gives, Gives::Waits { unless: None });
        // Of a variant pack, whose type is kept when it is made.
        let unless = Some((1, 16));
        let finalize = function("cudnnBackendFinalize");
        assert_eq!(finalize.gives, Gives::Waits { unless });
        let create = function("cudnnBackendCreateDescriptor");
        assert_eq!(create.kinds[0], ParameterKind::Int { keep: Some(1) });
        let matmul = function("cublasLtMatmul");
        assert!(matches!(
            matmul.kinds[7],
            ParameterKind::Scalar {
                of: 1,
                also: 4,
                is_bounded: true,
                ..
            }
        ));
        assert_eq!(
            function("cublasLtMatmulDescSetAttribute").attributes.len(),
            1
        );
        assert!(table().functions.len() < 1 << 13);
        assert_eq!(
            library_of("cublasLtMatmul").map(|library| library.name),
            Some("cublasLt")
        );
    }

    #[test]
    fn what_every_parameter_refers_to_is_there() {
        for function in &table().functions {
            let count = function.kinds.len();
            for kind in &function.kinds {
                let of = match kind {
                    ParameterKind::Scalar { of, .. } => *of,
                    ParameterKind::In(Size::Each(_, of) | Size::Type(of))
                    | ParameterKind::Out(Size::Each(_, of) | Size::Type(of))
                    | ParameterKind::Result(Size::Each(_, of) | Size::Type(of)) => *of,
                    _ => 0,
                };
                assert!(count == 0 || of < count, "{}", function.name);
            }
        }
    }

    #[test]
    fn conditions_are_those_of_matrices() {
        let gemm = function("cublasSgemm_v2");
        // Operations, m, n, k, and the leading dimensions.
        let holds = |words: [i64; 14]| {
            let all = gemm.conditions.iter();
            all.clone()
                .all(|condition| condition.holds(|at| words[at] as u64))
        };
        let good = [0, 0, 0, 2, 3, 4, 0, 0, 2, 0, 4, 0, 0, 2];
        assert!(holds(good));
        for (at, value) in [(3, -1), (8, 1), (10, 3), (13, 1), (1, 1), (2, 1)] {
            let mut bad = good;
            bad[at] = value;
            // A transposed B has n rows, which is less.
            assert_eq!(holds(bad), at == 2, "{at}");
        }
    }
}
