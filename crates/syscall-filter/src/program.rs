//! From refused calls to instructions. Pure.
//!
//! The numbers are cut into stretches with the same answer, and a stretch is found by halving. Jumps only go forward, to what
//! is written after them: the lower half first.

use std::collections::BTreeMap;

use crate::{Instruction, Refused, Test};

/// From here on the kernel of an x86 processor knows the same calls by a second number, which no list names.
const SECOND_NUMBERS: u32 = 0x4000_0000;
/// What the kernel answers to who asks for what it does not have.
const ABSENT: u16 = 38;

/// The lower half of the word `seccomp_data` at these places; every processor here has it first.
const NUMBER_AT: u32 = 0;
const PROCESSOR_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const KILL: u32 = 0x8000_0000;
const REFUSE: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// A processor, as the kernel names it to a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Processor {
    name: u32,
    has_second_numbers: bool,
}

impl Processor {
    pub fn this() -> Option<Self> {
        let (name, has_second_numbers) = match std::env::consts::ARCH {
            "x86_64" => (0xc000_003e, true),
            "aarch64" => (0xc000_00b7, false),
            "riscv64" => (0xc000_00f3, false),
            _ => return None,
        };
        Some(Self { name, has_second_numbers })
    }
}

/// Calls with the same answer, from a number on up to the next stretch.
#[derive(Debug, PartialEq, Eq)]
struct Stretch<'a> {
    from: u32,
    answer: Answer<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer<'a> {
    Allow,
    Refuse(u16),
    Look(&'a Refused),
}

pub(crate) fn compile(refused: &BTreeMap<u32, Refused>, processor: Processor) -> Vec<Instruction> {
    let mut program = vec![
        load(PROCESSOR_AT),
        // Another way into the kernel, with other numbers: nothing that anybody could answer to would be safe.
        test(IF_EQUAL, processor.name, 1, 0),
        end(KILL),
        load(NUMBER_AT),
    ];
    program.extend(halved(&stretches(refused, processor)));
    program
}

fn stretches(refused: &BTreeMap<u32, Refused>, processor: Processor) -> Vec<Stretch<'_>> {
    let mut all: Vec<Stretch<'_>> = Vec::new();
    let mut add = |from: u32, answer| {
        match all.last_mut() {
            // Two calls next to each other leave nothing between them.
            Some(last) if last.from == from => last.answer = answer,
            Some(last) if last.answer == answer => {}
            _ => all.push(Stretch { from, answer }),
        }
    };
    add(0, Answer::Allow);
    let first =
        refused.iter().filter(|(number, _)| **number < SECOND_NUMBERS || !processor.has_second_numbers);
    for (number, how) in first {
        let answer = if how.only.is_some() { Answer::Look(how) } else { Answer::Refuse(how.errno) };
        add(*number, answer);
        if let Some(next) = number.checked_add(1) {
            add(next, Answer::Allow);
        }
    }
    if processor.has_second_numbers {
        add(SECOND_NUMBERS, Answer::Refuse(ABSENT));
    }
    all
}

/// The way to each stretch; the number is loaded.
fn halved(stretches: &[Stretch<'_>]) -> Vec<Instruction> {
    if let [only] = stretches {
        return answered(only.answer);
    }
    let (lower, upper) = stretches.split_at(stretches.len() / 2);
    let from = upper.first().map_or(u32::MAX, |stretch| stretch.from);
    let (lower, upper) = (halved(lower), halved(upper));
    let mut way = if let Ok(over) = u8::try_from(lower.len()) {
        vec![test(IF_AT_LEAST, from, over, 0)]
    } else {
        // A test cannot jump that far.
        let over = u32::try_from(lower.len()).unwrap_or(u32::MAX);
        vec![test(IF_AT_LEAST, from, 0, 1), Instruction { code: JUMP, jt: 0, jf: 0, k: over }]
    };
    way.extend(lower);
    way.extend(upper);
    way
}

fn answered(answer: Answer<'_>) -> Vec<Instruction> {
    let (how, only) = match answer {
        Answer::Allow => return vec![end(ALLOW)],
        Answer::Refuse(errno) => return vec![end(REFUSE | u32::from(errno))],
        Answer::Look(how) => (end(REFUSE | u32::from(how.errno)), how.only.as_ref()),
    };
    let Some(only) = only else { return vec![how] };
    let mut way = vec![load(ARGUMENTS_AT + 8 * u32::from(only.position))];
    for reason in &only.any_of {
        match *reason {
            Test::Is(number) => way.extend([test(IF_EQUAL, number, 0, 1), how.clone()]),
            Test::HasAnyBit(bits) => way.extend([test(IF_ANY_BIT, bits, 0, 1), how.clone()]),
            Test::Between(low, high) => {
                way.extend([test(IF_AT_LEAST, low, 0, 2), test(IF_GREATER, high, 1, 0), how.clone()]);
            }
        }
    }
    way.push(end(ALLOW));
    way
}

fn load(at: u32) -> Instruction {
    Instruction { code: LOAD, jt: 0, jf: 0, k: at }
}

fn test(what: u16, with: u32, over_if: u8, over_else: u8) -> Instruction {
    Instruction { code: what, jt: over_if, jf: over_else, k: with }
}

fn end(answer: u32) -> Instruction {
    Instruction { code: RETURN, jt: 0, jf: 0, k: answer }
}

#[cfg(test)]
mod tests;
