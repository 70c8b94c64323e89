//! Interprets compiled programs and compares them with the list: for every number, with arguments around the bounds of each test.

use proptest::prelude::*;

use super::*;

const X86_64: u32 = 0xc000_003e;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const KILL: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

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

/// Returns the result of all programs: the first that is not to allow.
fn run_all(programs: &[BpfProgram], invocation: Invocation) -> u32 {
    programs.iter().map(|program| run(program, invocation)).find(|result| *result != ALLOW).unwrap_or(ALLOW)
}

/// Interprets a program.
fn run(program: &[sock_filter], invocation: Invocation) -> u32 {
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let is_true = match code {
            LOAD => {
                accumulator = invocation.load(k);
                continue;
            }
            AND => {
                accumulator &= k;
                continue;
            }
            JUMP => {
                at += k as usize;
                continue;
            }
            RETURN => return k,
            IF_EQUAL => accumulator == k,
            IF_GREATER => accumulator > k,
            IF_AT_LEAST => accumulator >= k,
            other => panic!("unknown instruction: {other:#x}"),
        };
        at += usize::from(if is_true { jt } else { jf });
    }
}

/// Returns the result that the list demands, computed without a program.
fn expected(list: &SyscallDenyList, invocation: Invocation) -> u32 {
    if invocation.architecture != X86_64 {
        return KILL;
    }
    if invocation.number >= X32_NUMBERS {
        return ERRNO | ENOSYS;
    }
    let Some(rule) = list.0.get(&invocation.number.into()) else { return ALLOW };
    let is_denied = rule.condition.as_ref().is_none_or(|condition| {
        let value = invocation.load(16 + 8 * u32::from(condition.position));
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
    let call = (0_i64..600, 1_i32..4, proptest::option::of(condition));
    proptest::collection::vec(call, 1..40).prop_map(|calls| {
        calls.into_iter().fold(SyscallDenyList::default(), |list, (call, errno, condition)| match condition {
            Some(condition) => list.deny_if(call, condition, errno),
            None => list.deny(&[call], errno),
        })
    })
}

#[cfg(target_arch = "x86_64")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn program_denies_what_the_list_denies(list in any_list(), values in proptest::collection::vec(any::<u64>(), 4)) {
        let programs = list.compile().unwrap();
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
                let invocation = Invocation { architecture: X86_64, number, arguments: [*value; 6] };
                prop_assert_eq!(run_all(&programs, invocation), expected(&list, invocation), "{} {:#x}", number, value);
            }
        }
        let i386 = Invocation { architecture: 0x4000_0003, number: 59, arguments: [0; 6] };
        prop_assert_eq!(run_all(&programs, i386), KILL);
    }
}
