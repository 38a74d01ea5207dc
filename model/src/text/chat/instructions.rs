//! Replaces instructions of a compiled template.
//!
//! Operators, filters, tests, methods and instructions that create values become calls of the functions in
//! [`operations`](super::operations), which compute as Python does and count what they create. The engine's version is
//! pinned, because its instructions are not a public interface.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use minijinja::{
    Template, Value,
    machinery::{Instruction, Instructions, get_compiled_template},
};

use super::{operations::*, python};

/// The instructions of a template and of its blocks, with the replacements.
pub(super) type Watched<'source> = (Instructions<'source>, BTreeMap<&'source str, Instructions<'source>>);

pub(super) fn watched<'source>(template: &Template<'source, 'source>) -> Watched<'source> {
    let compiled = get_compiled_template(template);
    let blocks = compiled.blocks.iter().map(|(name, block)| (*name, rewritten(block)));
    (rewritten(&compiled.instructions), blocks.collect())
}

/// New instructions, and the position of the old instruction that they replace.
type Part<'source> = (Option<u32>, Vec<Instruction<'source>>);

fn rewritten<'source>(old: &Instructions<'source>) -> Instructions<'source> {
    let parts = parts(old);
    let mut places = BTreeMap::new();
    let mut n_before = 0;
    for (at, instructions) in &parts {
        places.extend(at.map(|at| (at, n_before)));
        n_before += instructions.len() as u32;
    }
    let place = |at: u32| places.get(&at).copied().unwrap_or(n_before);
    let mut new = Instructions::new(old.name(), old.source());
    let mut line = 1;
    for (at, instructions) in parts {
        line = at.and_then(|at| old.get_line(at)).map_or(line, |line| line as u16);
        for mut instruction in instructions {
            match &mut instruction {
                Instruction::Iterate(target)
                | Instruction::Jump(target)
                | Instruction::JumpIfFalse(target)
                | Instruction::JumpIfFalseOrPop(target)
                | Instruction::JumpIfTrueOrPop(target)
                | Instruction::BuildMacro(_, target, _) => *target = place(*target),
                _ => {}
            }
            new.add_with_line(instruction, line);
        }
    }
    new
}

/// The new instructions in their order.
fn parts<'source>(old: &Instructions<'source>) -> Vec<Part<'source>> {
    let macros = Macro::all(old);
    let with_defaults: BTreeSet<&str> = macros.values().map(|with_default| with_default.name).collect();
    let new = |at: u32, instruction: &Instruction<'source>| match instruction {
        Instruction::GetClosure => {
            let enclosed = not_enclosed(old, at).into_iter().map(Instruction::Enclose);
            enclosed.chain([Instruction::GetClosure]).collect()
        }
        Instruction::CallFunction(name, Some(n @ 1..)) if with_defaults.contains(name) => {
            let given = [Instruction::CallFunction(GIVEN, Some(*n)), Instruction::UnpackList(usize::from(*n))];
            given.into_iter().chain(replacement(instruction)).collect()
        }
        _ => replacement(instruction),
    };
    let mut parts = Vec::new();
    let mut at = 0;
    while let Some(instruction) = old.get(at) {
        match macros.get(&at) {
            None => {
                parts.push((Some(at), new(at, instruction)));
                at += 1;
            }
            Some(with_default) => {
                parts.extend(with_default.start(old, at, &new));
                at = with_default.body;
            }
        }
    }
    parts
}

/// The start of a macro with defaults. The engine evaluates them from the last to the first, so that a default cannot use an
/// earlier argument, and takes an undefined argument for a missing one. Here all arguments are stored first.
struct Macro<'source> {
    name: &'source str,
    /// Each argument, and the instructions of its default: from the test of the argument to where it is stored.
    arguments: Vec<(&'source str, Option<RangeInclusive<u32>>)>,
    /// Where the body begins.
    body: u32,
}

impl<'source> Macro<'source> {
    /// The macros with defaults, by where they start.
    fn all(old: &Instructions<'source>) -> BTreeMap<u32, Self> {
        let instructions = (0..).map_while(|at| old.get(at));
        let built = instructions.filter_map(|instruction| match instruction {
            Instruction::BuildMacro(name, start, _) => Some((*start, Self::read(old, name, *start)?)),
            _ => None,
        });
        built.filter(|(_, built)| built.arguments.iter().any(|(_, default)| default.is_some())).collect()
    }

    /// Reads the arguments; the engine stores the last one first. Assignments to variables at the start of the body
    /// look the same, so arguments are counted by the names in front of `BuildMacro`.
    fn read(old: &Instructions<'source>, name: &'source str, start: u32) -> Option<Self> {
        let is_own = |instruction: &Instruction<'_>| matches!(instruction, Instruction::BuildMacro(_, other, _) if *other == start);
        let end = (start..).find(|at| old.get(*at).is_none_or(is_own))?;
        let Some(Instruction::LoadConst(names)) = old.get(end.checked_sub(1)?) else { return None };
        let mut arguments = Vec::new();
        let mut at = start;
        for _ in 0..names.len()? {
            let default = match (old.get(at), old.get(at + 1), old.get(at + 2)) {
                (Some(Instruction::DupTop), Some(Instruction::IsUndefined), Some(Instruction::JumpIfFalse(store))) => {
                    Some(at..=*store)
                }
                _ => None,
            };
            let store = default.as_ref().map_or(at, |default| *default.end());
            let Some(Instruction::StoreLocal(argument)) = old.get(store) else { return None };
            arguments.push((*argument, default));
            at = store + 1;
        }
        arguments.reverse();
        Some(Self { name, arguments, body: at })
    }

    /// Stores all arguments, then evaluates the defaults from the first to the last.
    fn start(
        &self,
        old: &Instructions<'source>,
        start: u32,
        new: &impl Fn(u32, &Instruction<'source>) -> Vec<Instruction<'source>>,
    ) -> Vec<Part<'source>> {
        let unwrap = Instruction::CallFunction(UNWRAP, Some(1));
        let stored = self.arguments.iter().rev().flat_map(|(argument, default)| {
            let unwrapped = default.is_none().then(|| unwrap.clone());
            unwrapped.into_iter().chain([Instruction::StoreLocal(argument)])
        });
        let mut parts = vec![(Some(start), stored.collect())];
        for (argument, default) in &self.arguments {
            let Some(default) = default else { continue };
            parts.push((None, vec![Instruction::Lookup(argument)]));
            for at in default.clone() {
                let own = old.get(at).map(|instruction| new(at, instruction)).unwrap_or_default();
                let before = (at == *default.end()).then(|| unwrap.clone());
                // `start` is where the arguments are stored.
                parts.push(((at != start).then_some(at), before.into_iter().chain(own).collect()));
            }
        }
        parts
    }
}

/// Names that a macro's body uses but that the engine does not pass to it: it overlooks names that the body only
/// assigns to (`{% set ns.x = 1 %}`). `at` is the position of the macro's `GetClosure`, after its body.
fn not_enclosed<'source>(instructions: &Instructions<'source>, at: u32) -> BTreeSet<&'source str> {
    let start = (at..).map_while(|at| instructions.get(at)).find_map(|instruction| match instruction {
        Instruction::BuildMacro(_, start, _) => Some(*start),
        _ => None,
    });
    let body = (start.unwrap_or(at)..at).map_while(|at| instructions.get(at));
    let used = body.filter_map(|instruction| match instruction {
        Instruction::Lookup(name) | Instruction::CallFunction(name, _) => Some(*name),
        _ => None,
    });
    // `Enclose` directly before `GetClosure`: instructions of macros within the body belong to those macros.
    let enclosed = (0..at).rev().map_while(|at| match instructions.get(at)? {
        Instruction::Enclose(name) => Some(*name),
        _ => None,
    });
    let enclosed: BTreeSet<_> = enclosed.chain(["caller"]).collect();
    used.filter(|name| !enclosed.contains(name)).collect()
}

/// The replacement of an instruction.
fn replacement<'source>(instruction: &Instruction<'source>) -> Vec<Instruction<'source>> {
    use Instruction::{CallFunction, DiscardTop, LoadConst, UnpackList};
    let own = instruction.clone();
    let binary = |name| vec![CallFunction(name, Some(2))];
    let named = |function, name: &str, n: u16| vec![LoadConst(name.into()), CallFunction(function, Some(n + 1))];
    match instruction {
        // Before the formatter.
        Instruction::EmitRaw(text) => vec![LoadConst(Value::from(*text)), Instruction::Emit],
        Instruction::Add => binary(ADD),
        Instruction::Sub => binary(SUBTRACT),
        Instruction::Mul => binary(MULTIPLY),
        Instruction::Div => binary(DIVIDE),
        Instruction::IntDiv => binary(FLOOR_DIVIDE),
        Instruction::Rem => binary(MODULO),
        Instruction::Pow => binary(POWER),
        Instruction::StringConcat => binary(CONCATENATE),
        Instruction::In => binary(IN),
        Instruction::Eq => binary(EQUAL),
        Instruction::Ne => binary(NOT_EQUAL),
        Instruction::Lt => binary(LESS),
        Instruction::Lte => binary(LESS_OR_EQUAL),
        Instruction::Gt => binary(GREATER),
        Instruction::Gte => binary(GREATER_OR_EQUAL),
        Instruction::Neg => vec![LoadConst((-1).into()), CallFunction(NEGATE, Some(2))],
        Instruction::CompareAndPreserve(operator) => {
            let compared = named(COMPARE_AND_KEEP, &format!("{operator:?}"), 2);
            compared.into_iter().chain([UnpackList(2)]).collect()
        }
        Instruction::Slice => vec![CallFunction(SLICE, Some(4))],
        Instruction::ApplyFilter(name, Some(n), _) => named(FILTER, name, *n),
        Instruction::PerformTest(name, Some(n), _) => named(TEST, name, *n),
        Instruction::CallMethod(name, Some(n)) => named(METHOD, name, *n),
        Instruction::GetAttr(name) if python::is_attribute(name) => named(ATTRIBUTE, name, 1),
        Instruction::GetItem => binary(ITEM),
        Instruction::SetAttr(name) => {
            let checked = named(KEEP, name, 2);
            checked.into_iter().chain([UnpackList(2), own]).collect()
        }
        // Arguments from an unpacked list cannot be checked.
        Instruction::ApplyFilter(_, None, _)
        | Instruction::CallMethod(_, None)
        | Instruction::PerformTest(_, None, _) => {
            vec![CallFunction(SPREAD, None), own]
        }
        Instruction::PushLoop(_) | Instruction::UnpackList(_) | Instruction::FastRecurse => {
            vec![CallFunction(ITEMS, Some(1)), own]
        }
        Instruction::CallFunction("loop", Some(1)) => {
            vec![CallFunction(ITEMS, Some(1)), own, CallFunction(RETURNED, Some(1))]
        }
        Instruction::CallFunction(..) => vec![own, CallFunction(RETURNED, Some(1))],
        Instruction::Enclose(name @ ("varargs" | "kwargs")) => {
            named(UNSUPPORTED, name, 0).into_iter().chain([DiscardTop]).collect()
        }
        Instruction::CallObject(_)
        | Instruction::BuildMap(_)
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::EndCapture => vec![own, CallFunction(MADE, Some(1))],
        _ => vec![own],
    }
}
