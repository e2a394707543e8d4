//! Instructions, as the parser leaves them.

/// A type of PTX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Unsigned,
    Signed,
    Float,
    Bits,
    Predicate,
}

/// A type and its width in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    pub(crate) bytes: usize,
}

impl Type {
    /// By its name, without the dot.
    pub(crate) fn named(name: &str) -> Option<Type> {
        if name == "pred" {
            return Some(Type {
                kind: Kind::Predicate,
                bytes: 1,
            });
        }
        let kind = match name.chars().next()? {
            'u' => Kind::Unsigned,
            's' => Kind::Signed,
            'f' => Kind::Float,
            'b' => Kind::Bits,
            _ => return None,
        };
        let bits: usize = name[1..].parse().ok()?;
        let known = matches!(bits, 8 | 16 | 32 | 64) && !(kind == Kind::Float && bits < 32);
        known.then_some(Type {
            kind,
            bytes: bits / 8,
        })
    }

    pub(crate) fn is_float(self) -> bool {
        self.kind == Kind::Float
    }

    pub(crate) fn is_signed(self) -> bool {
        self.kind == Kind::Signed
    }
}

/// What an instruction works on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Operand {
    Register(usize),
    Immediate(u64),
    /// By its name.
    Special(Special),
    /// The address of a variable of the module.
    Global(usize),
    Memory(Box<Operand>, i64),
    Several(Vec<Operand>),
    /// The result that is not wanted.
    Nothing,
}

/// Registers that the hardware sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    WarpSize,
    Clock,
    DynamicSharedBytes,
}

/// Where an address points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Parameter,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Load(Space),
    Store(Space),
    Atomic(Space),
    ToSpace(Space),
    FromSpace(Space),
    Move,
    Alu,
    Compare,
    Select,
    Convert,
    Branch(usize),
    Exit,
    Barrier,
    Trap,
    Shuffle,
    Vote,
    Nothing,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// Done only if this predicate is set (or, with `true`, if it is not).
    pub(crate) guard: Option<(usize, bool)>,
    pub(crate) operation: Operation,
    /// The parts of its name.
    pub(crate) name: Vec<String>,
    /// Of the result.
    pub(crate) kind: Type,
    /// Of the source, where it is another.
    pub(crate) from: Type,
    pub(crate) operands: Vec<Operand>,
}

impl Instruction {
    pub(crate) fn has(&self, part: &str) -> bool {
        self.name.iter().any(|name| name == part)
    }
}
