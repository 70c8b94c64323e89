//! Compiles deny rules to BPF instructions. Pure.
//!
//! The system call numbers are split into ranges with the same action, and a range is found by binary search. BPF jumps only go forward: the
//! lower half of a range follows its test, the upper half comes after that.

use std::collections::BTreeMap;

use crate::{ArgumentTest, DenyRule, Instruction};

/// The first x32 number. An x86-64 kernel accepts every system call under a second number from here on, which no list names.
const X32_NUMBERS: u32 = 0x4000_0000;
const ENOSYS: u16 = 38;

/// Offsets in `seccomp_data`. All supported architectures are little-endian, so the lower half of an argument comes first.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const KILL: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// A processor architecture, by its `AUDIT_ARCH` value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Architecture {
    audit_value: u32,
    has_x32: bool,
}

impl Architecture {
    /// Returns the architecture of this machine if it is supported.
    pub fn current() -> Option<Self> {
        let (audit_value, has_x32) = match std::env::consts::ARCH {
            "x86_64" => (0xc000_003e, true),
            "aarch64" => (0xc000_00b7, false),
            "riscv64" => (0xc000_00f3, false),
            _ => return None,
        };
        Some(Self { audit_value, has_x32 })
    }
}

/// System calls with the same action, from a number up to the next range.
#[derive(Debug, PartialEq, Eq)]
struct SyscallRange<'a> {
    start: u32,
    action: RangeAction<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangeAction<'a> {
    Allow,
    Deny(u16),
    TestArgument(&'a DenyRule),
}

/// Compiles a program.
pub(crate) fn compile(rules: &BTreeMap<u32, DenyRule>, architecture: Architecture) -> Vec<Instruction> {
    let mut program = vec![
        load(ARCHITECTURE_OFFSET),
        // Another system call interface has other numbers, so no rule could apply.
        test(IF_EQUAL, architecture.audit_value, 1, 0),
        result(KILL),
        load(NUMBER_OFFSET),
    ];
    program.extend(search(&split_into_ranges(rules, architecture)));
    program
}

fn split_into_ranges(rules: &BTreeMap<u32, DenyRule>, architecture: Architecture) -> Vec<SyscallRange<'_>> {
    let mut ranges: Vec<SyscallRange<'_>> = Vec::new();
    let mut add = |start: u32, action| {
        match ranges.last_mut() {
            // There is no gap between two adjacent numbers.
            Some(last) if last.start == start => last.action = action,
            Some(last) if last.action == action => {}
            _ => ranges.push(SyscallRange { start, action }),
        }
    };
    add(0, RangeAction::Allow);
    let native = rules.iter().filter(|(number, _)| **number < X32_NUMBERS || !architecture.has_x32);
    for (number, rule) in native {
        let action = match rule.condition {
            Some(_) => RangeAction::TestArgument(rule),
            None => RangeAction::Deny(rule.errno),
        };
        add(*number, action);
        if let Some(next) = number.checked_add(1) {
            add(next, RangeAction::Allow);
        }
    }
    if architecture.has_x32 {
        add(X32_NUMBERS, RangeAction::Deny(ENOSYS));
    }
    ranges
}

/// Returns the binary search for the range of the loaded number.
fn search(ranges: &[SyscallRange<'_>]) -> Vec<Instruction> {
    if let [range] = ranges {
        return perform(range.action);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let start = upper.first().map_or(u32::MAX, |range| range.start);
    let (lower, upper) = (search(lower), search(upper));
    let mut program = if let Ok(distance) = u8::try_from(lower.len()) {
        vec![test(IF_AT_LEAST, start, distance, 0)]
    } else {
        // The offset of a conditional jump has eight bits only.
        let distance = u32::try_from(lower.len()).unwrap_or(u32::MAX);
        vec![test(IF_AT_LEAST, start, 0, 1), Instruction { code: JUMP, jt: 0, jf: 0, k: distance }]
    };
    program.extend(lower);
    program.extend(upper);
    program
}

fn perform(action: RangeAction<'_>) -> Vec<Instruction> {
    let (deny, condition) = match action {
        RangeAction::Allow => return vec![result(ALLOW)],
        RangeAction::Deny(errno) => return vec![result(ERRNO | u32::from(errno))],
        RangeAction::TestArgument(rule) => (result(ERRNO | u32::from(rule.errno)), rule.condition.as_ref()),
    };
    let Some(condition) = condition else { return vec![deny] };
    let mut program = vec![load(ARGUMENTS_OFFSET + 8 * u32::from(condition.position))];
    for argument_test in &condition.any_of {
        match *argument_test {
            ArgumentTest::Equals(value) => program.extend([test(IF_EQUAL, value, 0, 1), deny.clone()]),
            ArgumentTest::HasAnyBit(bits) => program.extend([test(IF_ANY_BIT, bits, 0, 1), deny.clone()]),
            ArgumentTest::Between(low, high) => {
                program.extend([test(IF_AT_LEAST, low, 0, 2), test(IF_GREATER, high, 1, 0), deny.clone()]);
            }
        }
    }
    program.push(result(ALLOW));
    program
}

fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD, jt: 0, jf: 0, k: offset }
}

/// Skips a number of instructions, depending on the comparison.
fn test(comparison: u16, value: u32, skip_if_true: u8, skip_if_false: u8) -> Instruction {
    Instruction { code: comparison, jt: skip_if_true, jf: skip_if_false, k: value }
}

fn result(value: u32) -> Instruction {
    Instruction { code: RETURN, jt: 0, jf: 0, k: value }
}

#[cfg(test)]
mod tests;
