//! A program is run here as the kernel runs it, and has to say what the list says: for every number, with every argument that a test
//! could turn on.

use proptest::prelude::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::*;
use crate::{Argument, Refusals};

const THIS: Processor = Processor { name: 0xc000_003e, has_second_numbers: true };

/// A system call as a filter sees it.
#[derive(Clone, Copy)]
struct Asked {
    processor: u32,
    number: u32,
    arguments: [u64; 6],
}

impl Asked {
    fn word(&self, at: u32) -> u32 {
        let lower = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap();
        match at {
            0 => self.number,
            4 => self.processor,
            at => {
                let (argument, upper) = ((at - 16) / 8, (at - 16) % 8 == 4);
                let value = self.arguments[argument as usize];
                if upper { lower(value >> 32) } else { lower(value) }
            }
        }
    }
}

/// Runs a program; its answer, and how many instructions it took.
fn run(program: &[Instruction], asked: Asked) -> (u32, usize) {
    let (mut at, mut word, mut steps) = (0, 0, 0);
    loop {
        steps += 1;
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let holds = match code {
            LOAD => {
                word = asked.word(k);
                continue;
            }
            0x54 => {
                word &= k;
                continue;
            }
            JUMP => {
                at += k as usize;
                continue;
            }
            RETURN => return (k, steps),
            IF_EQUAL => word == k,
            IF_GREATER => word > k,
            IF_AT_LEAST => word >= k,
            IF_ANY_BIT => word & k != 0,
            other => panic!("an instruction that is not known: {other:#x}"),
        };
        at += usize::from(if holds { jt } else { jf });
    }
}

/// What the list says, read without any program.
fn expected(refusals: &Refusals, asked: Asked) -> u32 {
    if asked.processor != THIS.name {
        return KILL;
    }
    if asked.number >= SECOND_NUMBERS {
        return REFUSE | u32::from(ABSENT);
    }
    let Some(refused) = refusals.0.get(&asked.number) else { return ALLOW };
    let is_reason = refused.only.as_ref().is_none_or(|only| {
        let word = asked.word(ARGUMENTS_AT + 8 * u32::from(only.position));
        only.any_of.iter().any(|test| match *test {
            Test::Is(number) => word == number,
            Test::HasAnyBit(bits) => word & bits != 0,
            Test::Between(low, high) => (low..=high).contains(&word),
        })
    });
    if is_reason { REFUSE | u32::from(refused.errno) } else { ALLOW }
}

fn any_test() -> impl Strategy<Value = Test> {
    prop_oneof![
        any::<u32>().prop_map(Test::Is),
        any::<u32>().prop_map(Test::HasAnyBit),
        (any::<u32>(), any::<u32>()).prop_map(|(one, other)| Test::Between(one.min(other), one.max(other))),
    ]
}

fn any_refusals() -> impl Strategy<Value = Refusals> {
    let argument = (0_u8..6, proptest::collection::vec(any_test(), 1..5))
        .prop_map(|(position, any_of)| Argument { position, any_of });
    let call = (0_i64..600, 1_i32..100, proptest::option::of(argument));
    // Many, so that some programs are longer than a test can jump.
    proptest::collection::vec(call, 0..400).prop_map(|calls| {
        calls.into_iter().fold(Refusals::default(), |all, (call, errno, argument)| match argument {
            Some(argument) => all.when(call, argument, errno),
            None => all.always(&[call], errno),
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_program_says_what_the_list_says(refusals in any_refusals(), values in proptest::collection::vec(any::<u64>(), 4)) {
        let program = compile(&refusals.0, THIS);
        let edges = refusals.0.values().filter_map(|refused| refused.only.as_ref()).flat_map(|only| &only.any_of);
        let edges = edges.flat_map(|test| match *test {
            Test::Is(number) | Test::HasAnyBit(number) => [number, !number],
            Test::Between(low, high) => [low, high],
        });
        let values: Vec<u64> = values
            .into_iter()
            .chain(edges.take(20).flat_map(|edge| [u64::from(edge), u64::from(edge.wrapping_add(1)), u64::from(edge.wrapping_sub(1)), u64::from(edge) | (7 << 40)]))
            .chain([0, u64::MAX])
            .collect();
        for number in (0..602).chain([SECOND_NUMBERS - 1, SECOND_NUMBERS, SECOND_NUMBERS + 59, u32::MAX]) {
            for value in &values {
                let asked = Asked { processor: THIS.name, number, arguments: [*value; 6] };
                prop_assert_eq!(run(&program, asked).0, expected(&refusals, asked), "{} {:#x}", number, value);
            }
        }
        let elsewhere = Asked { processor: 0x4000_0003, number: 59, arguments: [0; 6] };
        prop_assert_eq!(run(&program, elsewhere).0, KILL);
    }
}

#[test]
fn the_kernels_own_library_says_the_same_of_the_same_list() {
    let calls = [libc::SYS_ptrace, libc::SYS_mount, libc::SYS_umount2, libc::SYS_bpf, libc::SYS_keyctl];
    let flags =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(0x1000), 0x1000).unwrap();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (call, Vec::new())).into();
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![flags]).unwrap()]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let theirs = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(1), arch).unwrap();
    let theirs: BpfProgram = theirs.try_into().unwrap();
    let flags = Argument { position: 0, any_of: vec![Test::HasAnyBit(0x1000)] };
    let ours = Refusals::default().always(&calls, 1).when(libc::SYS_clone, flags, 1).compile().unwrap();
    let processor = Processor::this().unwrap().name;
    for number in 0..1000 {
        for flags in [0, 0x1000, 0x2000, 0x3011, 0x1000 << 32] {
            let asked = Asked { processor, number, arguments: [flags; 6] };
            assert_eq!(run(&ours, asked).0, run(&theirs, asked).0, "{number} {flags:#x}");
        }
    }
}

#[test]
fn the_way_to_a_call_grows_with_the_logarithm_of_the_list() {
    let odd: Vec<i64> = (0..128).map(|number| 2 * number + 1).collect();
    let program = compile(&Refusals::default().always(&odd, 1).0, THIS);
    let longest = (0..600)
        .map(|number| run(&program, Asked { processor: THIS.name, number, arguments: [0; 6] }).1)
        .max();
    // Four at the beginning, nine halvings of 258 stretches with a long jump in one of them, and the answer.
    assert!(longest <= Some(16), "{longest:?}");
}
