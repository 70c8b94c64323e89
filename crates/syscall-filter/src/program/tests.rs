//! Interprets compiled programs and compares them with the list: for every number, with arguments around the bounds of each test.

use proptest::prelude::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::*;
use crate::{ArgumentCondition, SyscallDenyList};

const X86_64: Architecture = Architecture { audit_value: 0xc000_003e, has_x32: true };

/// A system call as a filter sees it.
#[derive(Clone, Copy)]
struct Invocation {
    architecture: u32,
    number: u32,
    arguments: [u64; 6],
}

impl Invocation {
    fn load(&self, offset: u32) -> u32 {
        let lower = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap();
        match offset {
            0 => self.number,
            4 => self.architecture,
            offset => {
                let (argument, upper) = ((offset - 16) / 8, (offset - 16) % 8 == 4);
                let value = self.arguments[argument as usize];
                if upper { lower(value >> 32) } else { lower(value) }
            }
        }
    }
}

/// Interprets a program. Returns its result and the number of executed instructions.
fn run(program: &[Instruction], invocation: Invocation) -> (u32, usize) {
    let (mut at, mut accumulator, mut steps) = (0, 0, 0);
    loop {
        steps += 1;
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let is_true = match code {
            LOAD => {
                accumulator = invocation.load(k);
                continue;
            }
            0x54 => {
                accumulator &= k;
                continue;
            }
            JUMP => {
                at += k as usize;
                continue;
            }
            RETURN => return (k, steps),
            IF_EQUAL => accumulator == k,
            IF_GREATER => accumulator > k,
            IF_AT_LEAST => accumulator >= k,
            IF_ANY_BIT => accumulator & k != 0,
            other => panic!("unknown instruction: {other:#x}"),
        };
        at += usize::from(if is_true { jt } else { jf });
    }
}

/// Returns the result that the list demands, computed without a program.
fn expected(list: &SyscallDenyList, invocation: Invocation) -> u32 {
    if invocation.architecture != X86_64.audit_value {
        return KILL;
    }
    if invocation.number >= X32_NUMBERS {
        return ERRNO | u32::from(ENOSYS);
    }
    let Some(rule) = list.0.get(&invocation.number) else { return ALLOW };
    let is_denied = rule.condition.as_ref().is_none_or(|condition| {
        let value = invocation.load(ARGUMENTS_OFFSET + 8 * u32::from(condition.position));
        condition.any_of.iter().any(|test| match *test {
            ArgumentTest::Equals(number) => value == number,
            ArgumentTest::HasAnyBit(bits) => value & bits != 0,
            ArgumentTest::Between(low, high) => (low..=high).contains(&value),
        })
    });
    if is_denied { ERRNO | u32::from(rule.errno) } else { ALLOW }
}

fn any_test() -> impl Strategy<Value = ArgumentTest> {
    prop_oneof![
        any::<u32>().prop_map(ArgumentTest::Equals),
        any::<u32>().prop_map(ArgumentTest::HasAnyBit),
        (any::<u32>(), any::<u32>())
            .prop_map(|(one, other)| ArgumentTest::Between(one.min(other), one.max(other))),
    ]
}

fn any_list() -> impl Strategy<Value = SyscallDenyList> {
    let condition = (0_u8..6, proptest::collection::vec(any_test(), 1..5))
        .prop_map(|(position, any_of)| ArgumentCondition { position, any_of });
    let call = (0_i64..600, 1_i32..100, proptest::option::of(condition));
    // So many that some programs need unconditional jumps.
    proptest::collection::vec(call, 0..400).prop_map(|calls| {
        calls.into_iter().fold(SyscallDenyList::default(), |list, (call, errno, condition)| match condition {
            Some(condition) => list.deny_if(call, condition, errno),
            None => list.deny(&[call], errno),
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn program_denies_what_the_list_denies(list in any_list(), values in proptest::collection::vec(any::<u64>(), 4)) {
        let program = compile(&list.0, X86_64);
        let edges = list.0.values().filter_map(|rule| rule.condition.as_ref()).flat_map(|condition| &condition.any_of);
        let edges = edges.flat_map(|test| match *test {
            ArgumentTest::Equals(number) | ArgumentTest::HasAnyBit(number) => [number, !number],
            ArgumentTest::Between(low, high) => [low, high],
        });
        let values: Vec<u64> = values
            .into_iter()
            .chain(edges.take(20).flat_map(|edge| [u64::from(edge), u64::from(edge.wrapping_add(1)), u64::from(edge.wrapping_sub(1)), u64::from(edge) | (7 << 40)]))
            .chain([0, u64::MAX])
            .collect();
        for number in (0..602).chain([X32_NUMBERS - 1, X32_NUMBERS, X32_NUMBERS + 59, u32::MAX]) {
            for value in &values {
                let invocation = Invocation { architecture: X86_64.audit_value, number, arguments: [*value; 6] };
                prop_assert_eq!(run(&program, invocation).0, expected(&list, invocation), "{} {:#x}", number, value);
            }
        }
        let i386 = Invocation { architecture: 0x4000_0003, number: 59, arguments: [0; 6] };
        prop_assert_eq!(run(&program, i386).0, KILL);
    }
}

#[test]
fn program_agrees_with_seccompiler() {
    let calls = [libc::SYS_ptrace, libc::SYS_mount, libc::SYS_umount2, libc::SYS_bpf, libc::SYS_keyctl];
    let flags =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(0x1000), 0x1000).unwrap();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (call, Vec::new())).into();
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![flags]).unwrap()]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let theirs = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(1), arch).unwrap();
    let theirs: BpfProgram = theirs.try_into().unwrap();
    let flags = ArgumentCondition { position: 0, any_of: vec![ArgumentTest::HasAnyBit(0x1000)] };
    let ours =
        SyscallDenyList::default().deny(&calls, 1).deny_if(libc::SYS_clone, flags, 1).compile().unwrap();
    let architecture = Architecture::current().unwrap().audit_value;
    for number in 0..1000 {
        for flags in [0, 0x1000, 0x2000, 0x3011, 0x1000 << 32] {
            let invocation = Invocation { architecture, number, arguments: [flags; 6] };
            assert_eq!(run(&ours, invocation).0, run(&theirs, invocation).0, "{number} {flags:#x}");
        }
    }
}

#[test]
fn execution_time_is_logarithmic() {
    let odd: Vec<i64> = (0..128).map(|number| 2 * number + 1).collect();
    let program = compile(&SyscallDenyList::default().deny(&odd, 1).0, X86_64);
    let architecture = X86_64.audit_value;
    let longest =
        (0..600).map(|number| run(&program, Invocation { architecture, number, arguments: [0; 6] }).1).max();
    // Four instructions of the prologue, nine tests for 258 ranges with one long jump, and the result.
    assert!(longest <= Some(16), "{longest:?}");
}
